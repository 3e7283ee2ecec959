// Two weights of v for Hopper: one KV loop, two products with the same tile of v, blocks that leave registers for both accumulators.
// RUN: attn-opt %inputs/two-outputs.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/two-outputs.mlir | FileCheck %s

// PLAN: tile.kernel = {block_kv = 64 : i64, block_q = 128 : i64}
// PLAN-SAME: emitter = "hopper"

// CHECK:         void __launch_bounds__(384, 1) attention(
// Three loads for the two roles of keys and values, in the loop as before it.
// CHECK:         attn::tma_load(shared + [[Q:kQ[0-9_]*]], &q_map_64x128
// CHECK:         attn::tma_load(shared + [[K:kK[0-9_]*]] + {{.*}}, &k_map_64x64
// CHECK:         attn::tma_load(shared + [[V:kV[0-9_]*]] + {{.*}}, &v_map_64x64
// CHECK:         attn::wgmma_m64n64k16_ss_f16([[S:s[0-9_]*]], a, b, 0);
// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[O:o[0-9_]*]], packed[0]
// CHECK-NOT:     attn::wgmma_m64n64k16_ss_f16
// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[O1:o[0-9_]*]], packed_2[0]
// CHECK:         attn::tma_store(&o_map_64x64, staging
// CHECK:         attn::bulk_wait_read<0>();
// CHECK:         attn::tma_store(&o1_map_64x64, staging
