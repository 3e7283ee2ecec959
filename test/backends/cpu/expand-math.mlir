// Vectors of f32 get polynomials; scalars and other types are left to libm.
// RUN: attn-opt %s -p 'cpu-expand-math' | FileCheck %s

// CHECK-LABEL: func.func @vectors(
// CHECK-NOT:     math.exp
// CHECK-NOT:     math.log
// CHECK-NOT:     math.tanh
// CHECK-NOT:     math.erf
// CHECK:         math.roundeven
// CHECK-COUNT-6: vector.fma
// CHECK:         return
func.func @vectors(%x: vector<8xf32>) -> vector<8xf32> {
  %a = math.exp %x : vector<8xf32>
  %b = math.exp2 %a : vector<8xf32>
  %c = math.log %b : vector<8xf32>
  %d = math.log2 %c : vector<8xf32>
  %e = math.tanh %d : vector<8xf32>
  %f = math.erf %e : vector<8xf32>
  return %f : vector<8xf32>
}

// CHECK-LABEL: func.func @scalars(
// CHECK-NEXT:    math.exp %{{.*}} : f32
// CHECK-NEXT:    math.exp %{{.*}} : vector<4xf64>
func.func @scalars(%x: f32, %y: vector<4xf64>) -> (f32, vector<4xf64>) {
  %a = math.exp %x : f32
  %b = math.exp %y : vector<4xf64>
  return %a, %b : f32, vector<4xf64>
}
