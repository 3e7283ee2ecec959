// A scan of a backward in bf16 for Hopper: products of o with q, and weights in two pieces, which two products multiply with v.
// It is asked for by name: the `warp` dialect makes those of 64 columns faster.
// RUN: sed '/^func.func/s/ {$/ attributes {tile.choices = {emitter = "hopper"}} {/' %S/../amd/chunks-products.mlir > %t
// RUN: sed -e "s/xf16/xbf16/g" %t | attn-translate --to cuda | FileCheck %s
// RUN: attn-translate --to cuda %t | FileCheck %s --check-prefix=HALF

// CHECK:        uint32_t packed[4], residual[4];
// CHECK:        packed[2 * d + h] = attn::pack_bf16(pair[0], pair[1]);
// CHECK-NEXT:   residual[2 * d + h] = attn::pack_residual_bf16(packed[2 * d + h], pair[0], pair[1]);
// CHECK:        attn::store_matrices(shared + kWeights + attn::swizzle_128(place), packed[0]
// CHECK-NEXT:   attn::store_matrices(shared + kWeights + 8192 + attn::swizzle_128(place), residual[0]
// CHECK:        attn::fence_proxy_async();
// CHECK:        const uint64_t [[ROUNDED:right\w*]] = attn::k_major(shared + kWeights);
// CHECK-NEXT:   const uint64_t [[REST:right\w*]] = attn::k_major(shared + kWeights + 8192);
// CHECK:        attn::wgmma_m64n64k16_ss_bf16_ta(o, attn::advance(left, k * 2048), attn::advance([[ROUNDED]], k * 32), 1);
// CHECK-NEXT:   attn::wgmma_m64n64k16_ss_bf16_ta(o, attn::advance(left, k * 2048), attn::advance([[REST]], k * 32), 1);

// f16 has digits enough.
// HALF:         attn::store_matrices(shared + kWeights
// HALF-NOT:     attn::store_matrices(shared + kWeights
