// Vectors get polynomials (in f64 for exp alone); scalars are left to libm.
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

// CHECK-LABEL: func.func @wide(
// CHECK-NOT:      math.exp
// CHECK:          math.roundeven
// CHECK-COUNT-15: vector.fma
// CHECK:          math.log %{{.*}} : vector<4xf64>
func.func @wide(%x: vector<4xf64>) -> vector<4xf64> {
  %a = math.exp %x : vector<4xf64>
  %b = math.log %a : vector<4xf64>
  return %b : vector<4xf64>
}

// CHECK-LABEL: func.func @scalars(
// CHECK-NEXT:    math.exp %{{.*}} : f32
func.func @scalars(%x: f32) -> f32 {
  %a = math.exp %x : f32
  return %a : f32
}
