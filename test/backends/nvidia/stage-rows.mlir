// Numbers of rows come with the tile of these rows, to the same stage, and count at its barrier: 32 lanes arrive for each of them.
// RUN: attn-opt %s --split-input-file -p 'warp-stage-rows' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-stage-rows,warp-specialize,warp-pipeline-loads' | FileCheck %s --check-prefix=RINGS

!heads = memref<?x?x?x64xf16>
!numbers = memref<?x?x?xf32>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 4 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%[[Q:.*]]: memref<?x?x?x64xf16>, %[[LSE:.*]]: memref<?x?x?xf32>, %[[N:.*]]: index):
// CHECK: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 33 : i64>
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<1x64xf32, #warp.shared<0 : i64>>
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"
// CHECK: scf.if
// CHECK: "warp.elect"() ({
// CHECK: "warp.copy_async"(%[[Q]], %c0, %c0, %[[ROW:.*]], %c0, %{{.*}}, %[[FULL]], %[[STAGE]]#0)
// CHECK-NEXT: }) : () -> ()
// CHECK-NEXT: "warp.copy_rows_async"(%[[LSE]], %c0, %c0, %[[ROW]], %[[NUMBERS]], %[[FULL]], %[[STAGE]]#0)
// CHECK: "warp.map"
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[J:.*]]: index):
// CHECK-NOT: memref.load %[[LSE]]
// CHECK: memref.load %[[NUMBERS]][%[[STAGE]]#0, %[[J]]]
// CHECK-NOT: memref.load %[[LSE]]
// RINGS: !warp.barrier<2 : i64, 33 : i64>
// RINGS: "warp.alloc"() : () -> memref<2x64xf32, #warp.shared<0 : i64>>
"warp.kernel"() ({
^bb0(%q: !heads, %lse: !numbers, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %buffer = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %leads = arith.cmpi eq, %w, %c0 : index
    scf.for %tile = %c0 to %n step %c1 iter_args(%all = %c0) -> (index) {
      %counted = scf.for %row = %c0 to %n step %c64 iter_args(%count = %all) -> (index) {
        %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
        %view = "warp.view"(%buffer, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        scf.if %leads {
          %other = arith.xori %phase, %c1 : index
          "warp.wait"(%free, %stage, %other) : (!free, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
            "warp.copy_async"(%q, %c0, %c0, %row, %c0, %view, %full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
          }) : () -> ()
        }
        "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
        %values = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %last = arith.subi %n, %c1 : index
          %most = arith.minsi %j, %last : index
          %at = arith.addi %row, %most : index
          %x = memref.load %lse[%c0, %c0, %at] : !numbers
          %next = arith.addi %row, %j : index
          %y = memref.load %lse[%c0, %c0, %next] : !numbers
          %z = arith.addf %x, %y : f32
          "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
        "warp.arrive"(%free, %stage) : (!free, index) -> ()
        %more = arith.addi %count, %c1 : index
        scf.yield %more : index
      }
      scf.yield %counted : index
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// Nothing brings rows from 0 on.
// CHECK: memref.load
// CHECK: warp.refused = {"warp-stage-rows" = "no copy brings the tile of the rows whose numbers a map reads, and holds it meanwhile"}
"warp.kernel"() ({
^bb0(%lse: memref<?x?x?xf32>):
  %c0 = arith.constant 0 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %values = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %at = arith.addi %w, %j : index
      %x = memref.load %lse[%c0, %c0, %at] : memref<?x?x?xf32>
      "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
