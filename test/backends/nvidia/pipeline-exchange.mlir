// What warpgroups exchange gets two stages, used in turn; the meeting before they write is not needed then.
// RUN: attn-opt %s --split-input-file -p 'warp-pipeline-exchange,cse' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!all = memref<1x128x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<2 : i64, 1 : i64>

// CHECK: %[[WEIGHTS:.*]] = "warp.alloc"() : () -> memref<2x128x64xf16, #warp.shared<128 : i64>>
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 2 : i64}
// CHECK: %[[OWN:.*]] = "warp.view"(%[[WEIGHTS]], %[[STAGE]]#0
// CHECK-NOT: "warp.named_sync"
// CHECK: "warp.write"(%{{.*}}, %[[OWN]])
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.named_sync"
// CHECK: "warp.view"(%[[WEIGHTS]], %[[STAGE]]#0
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %weights = "warp.alloc"() : () -> !all
  %q_full = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    %p = ub.poison : !half
    %first = arith.muli %w, %c64 : index
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%count = %c0) -> (index) {
      %stage, %phase = "warp.stage"(%count) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%q_full, %stage, %phase) : (!full, index, index) -> ()
      %own = "warp.view"(%weights, %c0, %first, %c0) : (!all, index, index, index) -> !tile
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      "warp.write"(%p, %own) : (!half, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      %x = "warp.view"(%weights, %c0, %c0, %c0) : (!all, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %t0 = "warp.mma_async"(%r, %x, %x, %false) {transpose_a = true, transpose_b = false} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-pipeline-exchange" = "no warpgroups exchange anything"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
