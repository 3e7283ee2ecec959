// The buffer by which a role's sums leave gets two stages, used in turn: a tile waits for the addition before the last.
// RUN: attn-opt %s --split-input-file -p 'warp-pipeline-additions,cse' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!full = !warp.barrier<2 : i64, 1 : i64>
!sums = memref<?x?x?x?x64xf32, strided<[?, ?, ?, ?, ?]>>

// CHECK: %[[BUFFER:.*]] = "warp.alloc"() : () -> memref<2x64x64xf32
// CHECK: scf.for {{.*}} iter_args(%[[COUNT:.*]] = %c0)
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]]) {stages = 2 : i64}
// CHECK: "warp.view"(%[[BUFFER]], %[[STAGE]]#0
// CHECK: "warp.store_wait"() {pending = 1 : i64, read = true}
// CHECK: "warp.store_wait"() {pending = 0 : i64, read = false}
"warp.kernel"() ({
^bb0(%n: index, %dq: !sums):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %weights_full = "warp.mbarrier"() : () -> !full
  %buffer = "warp.alloc"() : () -> memref<1x64x64xf32, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
    %p = ub.poison : !acc
    %end = scf.for %m = %c0 to %n step %c1 iter_args(%count = %c0) -> (index) {
      %stage, %phase = "warp.stage"(%count) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%weights_full, %stage, %phase) : (!full, index, index) -> ()
      %view = "warp.view"(%buffer, %c0, %c0, %c0) : (memref<1x64x64xf32, #warp.shared<128 : i64>>, index, index, index) -> !tile
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
      }) : () -> ()
      "warp.named_sync"(%c8) {threads = 128 : i64} : (index) -> ()
      "warp.write"(%p, %view) : (!acc, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%c8) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, !sums, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
    "warp.elect"() ({
      "warp.store_wait"() {pending = 0 : i64, read = false} : () -> ()
    }) : () -> ()
  }) {sym_name = "sums", warpgroups = 1 : i64, warps = 4 : i64, registers = 88 : i64} : () -> ()
}) {sym_name = "kernel", function = "f", registers = 168 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64} : () -> ()

// -----

// CHECK: warp.refused = {"warp-pipeline-additions" = "no role only adds, in no fixed order"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64, registers = 160 : i64} : () -> ()
}) {sym_name = "kernel", function = "f", registers = 168 : i64, lanes = 32 : i64, register_file = 65536 : i64, shared_limit = 232448 : i64} : () -> ()
