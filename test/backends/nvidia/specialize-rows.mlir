// Numbers of rows come by a warp of their own, in a ring of four stages: it runs further ahead than the tiles.
// RUN: attn-opt %s --split-input-file -p 'warp-specialize-rows' | FileCheck %s

!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!rows = memref<2x64xf32, #warp.shared<0 : i64>>
!lse = memref<?x?x?xf32>
!full = !warp.barrier<2 : i64, 33 : i64>
!free = !warp.barrier<2 : i64, 8 : i64>
!out = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// The barrier of tiles awaits no lanes any more.
// CHECK: %[[TILES:.*]] = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<4x64xf32
// CHECK: %[[FULL:rows_full]] = "warp.mbarrier"() : () -> !warp.barrier<4 : i64, 32 : i64>
// CHECK: %[[FREE:rows_free]] = "warp.mbarrier"() : () -> !warp.barrier<4 : i64, 8 : i64>
// CHECK-NOT: "warp.copy_rows_async"
// CHECK: sym_name = "producer"
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 4 : i64}
// CHECK: "warp.wait"(%[[FREE]], %[[STAGE]]#0,
// CHECK-NEXT: "warp.copy_rows_async"({{.*}}, %[[NUMBERS]], %[[FULL]], %[[STAGE]]#0)
// CHECK: first_warp = 1 : i64, registers = 24 : i64, sym_name = "rows", warpgroups = 1 : i64, warps = 1 : i64
// CHECK: %[[OWN:.*]]:2 = "warp.stage"(%{{.*}}) {stages = 4 : i64}
// CHECK: "warp.wait"(%[[TILES]],
// CHECK-NEXT: "warp.wait"(%[[FULL]], %[[OWN]]#0, %[[OWN]]#1)
// CHECK: memref.load %[[NUMBERS]][%[[OWN]]#0,
// CHECK: "warp.arrive"(%[[FREE]], %[[OWN]]#0)
"warp.kernel"() ({
^bb0(%lse: !lse, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  %numbers = "warp.alloc"() : () -> !rows
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      %before = arith.xori %phase, %c1 : index
      "warp.wait"(%free, %stage, %before) : (!free, index, index) -> ()
      "warp.copy_rows_async"(%lse, %c0, %c0, %m, %numbers, %full, %stage) : (!lse, index, index, index, !rows, !full, index) -> ()
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
      %e = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = memref.load %numbers[%stage, %j] : !rows
        "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !out
      "warp.arrive"(%free, %stage) : (!free, index) -> ()
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {row_warps = 1 : i64}} : () -> ()

// -----

!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!rows = memref<2x64xf32, #warp.shared<0 : i64>>
!lse = memref<?x?x?xf32>
!full = !warp.barrier<2 : i64, 33 : i64>
!free = !warp.barrier<2 : i64, 8 : i64>
!out = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: warp.refused = {"warp-specialize-rows" = "the producer's warpgroup has no idle warp"}
"warp.kernel"() ({
^bb0(%lse: !lse, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  %numbers = "warp.alloc"() : () -> !rows
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      %before = arith.xori %phase, %c1 : index
      "warp.wait"(%free, %stage, %before) : (!free, index, index) -> ()
      "warp.copy_rows_async"(%lse, %c0, %c0, %m, %numbers, %full, %stage) : (!lse, index, index, index, !rows, !full, index) -> ()
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
      %e = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = memref.load %numbers[%stage, %j] : !rows
        "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !out
      "warp.arrive"(%free, %stage) : (!free, index) -> ()
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {row_warps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize-rows" = "no numbers of rows are copied by a producer beside one role of consumers"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {row_warps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize-rows" = "the schedule lets the producer copy numbers of rows (row_warps)"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
