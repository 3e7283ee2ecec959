// Arithmetic of positions that a comparison or a rounding reads keeps its divisions and sums; that of scores does not.
// RUN: attn-opt %s -p 'gpu-exact-jumps,gpu-sink-factors' | FileCheck %s

// floor((j - i) / 41) <= t: the quotient is one division of the whole distance.
// CHECK-LABEL: func.func @positions(
// CHECK:           %[[DISTANCE:.*]] = arith.subf %{{.*}}, %{{.*}} {gpu.exact} : f32
// CHECK:           %[[QUOTIENT:.*]] = arith.divf %[[DISTANCE]], %{{.*}} {gpu.exact} : f32
// CHECK:           math.floor %[[QUOTIENT]]

// What is not read by a jump is a product, taken apart.
// CHECK:           math.fma
// CHECK-NOT:       gpu.exact

// CHECK-LABEL: func.func @scores(
// CHECK-NOT:       gpu.exact
// CHECK:           %[[PRODUCT:.*]] = arith.mulf
// CHECK-NOT:       arith.divf
// CHECK:           arith.cmpf olt, %[[PRODUCT]]
!t = tensor<128x64xf32>
func.func @positions(%s: !t, %rows: index, %columns: index) -> !t {
  %c = arith.constant 41.0 : f32
  %zero = arith.constant 0.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %i_int = arith.index_cast %i : index to i64
    %j_int = arith.index_cast %j : index to i64
    %i_float = arith.sitofp %i_int : i64 to f32
    %j_float = arith.sitofp %j_int : i64 to f32
    %distance = arith.subf %j_float, %i_float : f32
    %quotient = arith.divf %distance, %c : f32
    %floor = math.floor %quotient : f32
    %keep = arith.cmpf ole, %floor, %zero : f32
    %other = arith.subf %i_float, %j_float : f32
    %slope = arith.divf %other, %c : f32
    %biased = arith.addf %x, %slope : f32
    %masked = arith.select %keep, %biased, %zero : f32
    "tile.yield"(%masked) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

func.func @scores(%s: !t, %rows: index, %columns: index) -> !t {
  %c = arith.constant 41.0 : f32
  %zero = arith.constant 0.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %quotient = arith.divf %x, %c : f32
    %keep = arith.cmpf olt, %quotient, %zero : f32
    %masked = arith.select %keep, %x, %zero : f32
    "tile.yield"(%masked) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}
