// Of packed sequences, row T - n + i of the entry where a sequence of n rows ends is row i of those from its begin on: its numbers come
// with the tile, too, where these are of tensors that are no views.
// RUN: attn-opt %s -p 'warp-stage-rows' | FileCheck %s

!heads = memref<?x?x?x64xf16>
!numbers = memref<?x?x?xf32>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 4 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%{{.*}}: memref<?x?x?x64xf16>, %[[LSE:.*]]: memref<?x?x?xf32>, %[[BEGIN:.*]]: index, %{{.*}}: index):
// CHECK: %[[NUMBERS:.*]] = "warp.alloc"() : () -> memref<1x64xf32, #warp.shared<0 : i64>>
// CHECK: scf.for %[[ROW:.*]] = %c0 to %{{.*}} step %c64
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"
// CHECK: "warp.copy_async"
// CHECK: %[[ZERO:.*]] = arith.constant 0 : index
// CHECK: %[[AT:.*]] = arith.addi %[[BEGIN]], %[[ROW]]
// CHECK: "warp.copy_rows_async"(%[[LSE]], %[[ZERO]], %c1, %[[AT]], %[[NUMBERS]], %{{.*}}, %[[STAGE]]#0)
// CHECK: "warp.map"
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[J:.*]]: index):
// CHECK-NOT: memref.load %[[LSE]]
// CHECK: memref.load %[[NUMBERS]][%[[STAGE]]#0, %[[J]]]
"warp.kernel"() ({
^bb0(%q: !heads, %lse: !numbers, %begin: index, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %c2 = arith.constant 2 : index
  %rows = memref.dim %q, %c2 : !heads
  %shift = arith.subi %rows, %n : index
  %entry = arith.addi %begin, %n : index
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
        %place = arith.addi %shift, %row : index
        scf.if %leads {
          %other = arith.xori %phase, %c1 : index
          "warp.wait"(%free, %stage, %other) : (!free, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
            "warp.copy_async"(%q, %entry, %c1, %place, %c0, %view, %full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
          }) : () -> ()
        }
        "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
        %values = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %last = arith.subi %n, %c1 : index
          %most = arith.minsi %j, %last : index
          %inside = arith.addi %row, %most : index
          %at = arith.addi %begin, %inside : index
          %x = memref.load %lse[%c0, %c1, %at] : !numbers
          "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
        "warp.arrive"(%free, %stage) : (!free, index) -> ()
        %more = arith.addi %count, %c1 : index
        scf.yield %more : index
      }
      scf.yield %counted : index
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
