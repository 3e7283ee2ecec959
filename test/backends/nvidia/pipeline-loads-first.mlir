// The ring that an inner loop fills first has stages of its own, where the schedule says so; so do its barriers and the stages of its uses.
// RUN: attn-opt %s -p 'warp-pipeline-loads' | FileCheck %s

// CHECK: %[[KEYS:.*]] = "warp.alloc"() : () -> memref<4x64x64xf16, #warp.shared<128 : i64>>
// CHECK: %[[KEYS_FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<4 : i64, 1 : i64>
// CHECK: %[[VALUES:.*]] = "warp.alloc"() : () -> memref<3x64x64xf16, #warp.shared<128 : i64>>
// CHECK: %[[VALUES_FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 1 : i64>
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 4 : i64}
// CHECK: "warp.view"(%[[KEYS]], %[[STAGE]]#0,
// CHECK: "warp.copy_async"({{.*}}, %[[KEYS_FULL]], %[[STAGE]]#0)
// CHECK: %[[OTHER:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 3 : i64}
// CHECK: "warp.view"(%[[VALUES]], %[[OTHER]]#0,
// CHECK: "warp.copy_async"({{.*}}, %[[VALUES_FULL]], %[[OTHER]]#0)

!heads = memref<?x?x?x64xf16>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>

"warp.kernel"() ({
^bb0(%k: !heads, %v: !heads):
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %rows = memref.dim %k, %c2 : !heads
  %buffer = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %v_buffer = "warp.alloc"() : () -> !ring
  %v_full = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %rows step %c64 {
      scf.for %n = %c0 to %rows step %c64 {
        %stage, %phase = "warp.stage"(%n) {stages = 1 : i64} : (index) -> (index, index)
        %tile = "warp.view"(%buffer, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.elect"() ({
          "warp.copy_async"(%k, %c0, %c0, %n, %c0, %tile, %full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
        %next = arith.addi %n, %c64 : index
        %v_stage, %v_phase = "warp.stage"(%next) {stages = 1 : i64} : (index) -> (index, index)
        %v_tile = "warp.view"(%v_buffer, %v_stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.elect"() ({
          "warp.copy_async"(%v, %c0, %c0, %n, %c0, %v_tile, %v_full, %v_stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
      }
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {first_stages = 4 : i64, stages = 3 : i64}} : () -> ()
