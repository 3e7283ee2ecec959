// A distance of positions is compared with a window of any size: it is clamped to 2^30, which no distance reaches.
// RUN: attn-opt %s -p 'gpu-narrow-comparisons' | FileCheck %s

// CHECK-LABEL: func.func @window(
// CHECK-SAME:    %{{[^:]*}}: memref<?x?x?x64xf16>, %[[WINDOW:[^:]*]]: index
// CHECK:           %[[BACK:.*]] = arith.subi %{{.*}}, %{{.*}} : index
// CHECK-DAG:       %[[MOST:.*]] = arith.constant 1073741824 : index
// CHECK-DAG:       %[[LEAST:.*]] = arith.constant -1073741824 : index
// CHECK:           %[[LOW:.*]] = arith.minsi %[[WINDOW]], %[[MOST]] : index
// CHECK-NEXT:      %[[WIDTH:.*]] = arith.maxsi %[[LOW]], %[[LEAST]] : index
// CHECK-NEXT:      arith.cmpi sle, %[[BACK]], %[[WIDTH]] : index
// A multiple of it may be larger.
// CHECK:           %[[MULTIPLE:.*]] = arith.muli %[[BACK]], %[[WINDOW]] : index
// CHECK-NEXT:      arith.cmpi sle, %[[MULTIPLE]], %[[WINDOW]] : index
// What fits is left alone.
// CHECK-NEXT:      arith.cmpi sge, %[[BACK]], %{{.*}} : index
func.func @window(%q: memref<?x?x?x64xf16>, %window: index) -> tensor<128x64xi1> {
  %rows = arith.constant 128 : index
  %columns = arith.constant 64 : index
  %zero = arith.constant 0 : index
  %p = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %back = arith.subi %i, %j : index
    %near = arith.cmpi sle, %back, %window : index
    %multiple = arith.muli %back, %window : index
    %other = arith.cmpi sle, %multiple, %window : index
    %past = arith.cmpi sge, %back, %zero : index
    %a = arith.andi %near, %past : i1
    %b = arith.andi %a, %other : i1
    "tile.yield"(%b) {operandSegmentSizes = array<i32: 1, 0>} : (i1) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xi1>
  return %p : tensor<128x64xi1>
}
