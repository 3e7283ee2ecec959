// Weights that warpgroups exchange are multiplied an iteration later, with what their addition needs; the last ones after the loop.
// RUN: attn-opt %s --split-input-file -p 'warp-delay-sums' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!own = memref<64x64xf16, #warp.shared<128 : i64>>
!tile = memref<128x64xf16, #warp.shared<128 : i64>>
!keys = memref<1x128x64xf16, #warp.shared<128 : i64>>
!all = memref<2x128x64xf16, #warp.shared<128 : i64>>
!sums = memref<64x64xf32, #warp.shared<128 : i64>>
!dq = memref<?x?x?x?x64xf32>

// CHECK: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 8 : i64>
// CHECK: %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 8 : i64>
// CHECK: %[[NONE:.*]] = arith.constant -1 : index
// CHECK: %[[END:.*]]:3 = scf.for {{.*}} iter_args(%[[COUNT:.*]] = %{{.*}}, %[[BEFORE:.*]] = %[[NONE]], %[[ROW:.*]] = %{{.*}})
// CHECK: "warp.wait"(%[[FREE]],
// CHECK-NEXT: "warp.write"
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.arrive"(%[[FULL]],
// CHECK-NOT: "warp.named_sync"
// CHECK: %[[SOME:.*]] = arith.cmpi sge, %[[BEFORE]]
// CHECK: %[[TILE:.*]] = scf.if %[[SOME]]
// CHECK-NEXT: "warp.wait"(%[[FULL]],
// CHECK: "warp.mma_async"(%{{.*}}, %[[TILE]],
// CHECK: %[[SUM:.*]] = "warp.mma_wait"
// CHECK-NEXT: scf.if %[[SOME]] {
// CHECK-NEXT: "warp.arrive"(%[[FREE]],
// CHECK: "warp.write"(%[[SUM]],
// CHECK: "warp.add_async"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[ROW]],
// CHECK: scf.yield %{{.*}}, %[[COUNT]], %{{.*}}
// CHECK: %[[LAST:.*]] = arith.cmpi sge, %[[END]]#1
// CHECK: scf.if %[[LAST]] {
// CHECK: "warp.mma_async"
// CHECK: "warp.mma_wait"(%{{.*}}) {pending = 0 : i64}
// CHECK: "warp.add_async"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[END]]#2,
"warp.kernel"() ({
^bb0(%n: index, %dq: !dq):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %weights = "warp.alloc"() : () -> !all
  %k = "warp.alloc"() : () -> !keys
  %o = "warp.alloc"() : () -> memref<1x128x64xf32, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
    %p = ub.poison : !half
    %first = arith.muli %w, %c64 : index
    %end = scf.for %m = %c0 to %n step %c64 iter_args(%count = %c0) -> (index) {
      %stage, %phase = "warp.stage"(%count) {stages = 2 : i64} : (index) -> (index, index)
      %own = "warp.view"(%weights, %stage, %first, %c0) : (!all, index, index, index) -> !own
      "warp.write"(%p, %own) : (!half, !own) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      %x = "warp.view"(%weights, %stage, %c0, %c0) : (!all, index, index, index) -> !tile
      %y = "warp.view"(%k, %c0, %c0, %c0) : (!keys, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %t0 = "warp.mma_async"(%r, %x, %y, %false) {transpose_a = true, transpose_b = false} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %t = "warp.mma_wait"(%t0) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %to = "warp.view"(%o, %c0, %first, %c0) : (memref<1x128x64xf32, #warp.shared<128 : i64>>, index, index, index) -> !sums
      "warp.write"(%t, %to) : (!acc, !sums) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%c8) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%to, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!sums, !dq, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {key_sums = "late"}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-delay-sums" = "no warpgroups exchange anything"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {key_sums = "late"}} : () -> ()
