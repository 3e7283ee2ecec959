// Rings that an inner loop fills get more stages; those filled once a tile keep one.
// RUN: attn-opt %s -p 'warp-pipeline-loads{stages=3}' | FileCheck %s
// RUN: attn-opt %s -p 'warp-pipeline-loads' | FileCheck %s --check-prefix=USUAL
// RUN: attn-opt %s -p 'warp-pipeline-loads{stages=40}' | FileCheck %s --check-prefix=MANY
// RUN: attn-opt %s -p 'warp-pipeline-loads,warp-pipeline-loads' | FileCheck %s --check-prefix=AGAIN
// RUN: not attn-opt %s -p 'warp-pipeline-loads{stages=-1}' 2>&1 | FileCheck %s --check-prefix=LESS

// CHECK: "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
// CHECK: "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
// CHECK: "warp.alloc"() : () -> memref<3x64x64xf16, #warp.shared<128 : i64>>
// CHECK: "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 1 : i64>
// CHECK: "warp.mbarrier"() : () -> !warp.barrier<3 : i64, 4 : i64>
// CHECK: "warp.stage"(%{{.*}}) {stages = 1 : i64}
// CHECK: "warp.stage"(%{{.*}}) {stages = 3 : i64}
// CHECK: sym_name = "producer"
// CHECK: "warp.stage"(%{{.*}}) {stages = 3 : i64}
// CHECK: sym_name = "consumer"
// USUAL: memref<2x64x64xf16
// MANY: warp.refused = {"warp-pipeline-loads" = "40 stages take 335872 bytes of shared memory, there are 232448"}
// AGAIN: warp.refused = {"warp-pipeline-loads" = "no inner loop fills a ring of one stage"}
// LESS: error: warp-pipeline-loads: `stages` must not be negative, got -1

!heads = memref<?x?x?x64xf16>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 4 : i64>

"warp.kernel"() ({
^bb0(%q: !heads, %k: !heads):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %rows = memref.dim %k, %c2 : !heads
  %q_buffer = "warp.alloc"() : () -> !ring
  %q_full = "warp.mbarrier"() : () -> !full
  %buffer = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %0:2 = scf.for %m = %c0 to %rows step %c64 iter_args(%q_count = %c0, %count = %c0) -> (index, index) {
      %q_stage, %q_phase = "warp.stage"(%q_count) {stages = 1 : i64} : (index) -> (index, index)
      %q_tile = "warp.view"(%q_buffer, %q_stage, %c0, %c0) : (!ring, index, index, index) -> !tile
      "warp.elect"() ({
        "warp.copy_async"(%q, %c0, %c0, %m, %c0, %q_tile, %q_full, %q_stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
      }) : () -> ()
      %1 = scf.for %n = %c0 to %rows step %c64 iter_args(%inner = %count) -> (index) {
        %stage, %phase = "warp.stage"(%inner) {stages = 1 : i64} : (index) -> (index, index)
        %other = arith.xori %phase, %c1 : index
        "warp.wait"(%free, %stage, %other) : (!free, index, index) -> ()
        %tile = "warp.view"(%buffer, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.elect"() ({
          "warp.arrive_expect"(%full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
          "warp.copy_async"(%k, %c0, %c0, %n, %c0, %tile, %full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
        %next = arith.addi %inner, %c1 : index
        scf.yield %next : index
      }
      %q_next = arith.addi %q_count, %c1 : index
      scf.yield %q_next, %1 : index, index
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    %0 = scf.for %n = %c0 to %rows step %c64 iter_args(%count = %c0) -> (index) {
      %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
      "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
      "warp.arrive"(%free, %stage) : (!free, index) -> ()
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
