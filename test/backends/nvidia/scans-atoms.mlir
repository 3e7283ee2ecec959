// In kernels of one chunk whose products are those of loaded tiles of 64 positions a warpgroup multiplies: both factors lie in swizzle atoms.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/linear/gated-delta-half.mlir | FileCheck %s

// PLAN-LABEL: func.func @attention_chunks(
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", atoms = 1 : i64, emitter = "scans", occupancy = 4 : i64, stages = 1 : i64, warps = 4 : i64}

// Copies by threads are visible to the instructions that read shared memory by themselves. Rows of a thread, one at most, have no loop.
// CHECK-LABEL: void __launch_bounds__(128, 4) attention_chunks(
// CHECK:         attn::copy_atoms<64, 64>([[Q:memory]],
// CHECK:         attn::copy_atoms<64, 64>([[K:\(memory \+ 8192\)]],
// CHECK:         fetch(at, 0);
// CHECK-NEXT:    attn::wait_copies(), attn::fence_proxy_async();
// CHECK-NEXT:    __syncthreads();
// CHECK:         if (const int i = threadIdx.x; i < 64)

// Products that follow each other run together.
// CHECK:         const uint64_t a = attn::k_major(attn::shared_address([[K]]));
// CHECK:         attn::wgmma_m64n64k16_ss_bf16([[A:product]], a, b, 0);
// CHECK:         attn::wgmma_commit();
// CHECK-NEXT:    float [[P:product_2]][32];
// CHECK:         const uint64_t a = attn::k_major(attn::shared_address([[Q]]));
// CHECK:         attn::wgmma_m64n64k16_ss_bf16([[P]], a, b, 0);
// CHECK:         attn::wgmma_wait<0>();
// CHECK-NEXT:    attn::hold([[A]]);
// CHECK-NEXT:    attn::hold([[P]]);

// One exponential weighs both; each warp has whole rows.
// CHECK:         exp2f(
// CHECK-NOT:     exp2f(
// CHECK:         attn::invert_triangle<64, 2>(
