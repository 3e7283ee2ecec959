// bf16 is made by integer arithmetic where the processor has no instruction, f64 goes by way of f32.
// RUN: attn-opt %s -p 'cpu-expand-casts{bf16=always}' | FileCheck %s
// RUN: attn-opt %s -p 'cpu-expand-casts{bf16=never}' | FileCheck %s --check-prefix=NATIVE
// RUN: not attn-opt %s -p 'cpu-expand-casts{bf16=maybe}' 2>&1 | FileCheck %s --check-prefix=OPTION

// CHECK-LABEL: func.func @scalar(
// CHECK-NOT:     arith.truncf
// CHECK:         arith.bitcast %{{.*}} : f32 to i32
// CHECK:         arith.cmpf uno
// CHECK:         arith.select %{{.*}}, %{{.*}}, %{{.*}} : i32
// CHECK:         %[[LOW:.*]] = arith.trunci %{{.*}} : i32 to i16
// CHECK:         arith.bitcast %[[LOW]] : i16 to bf16
// NATIVE-LABEL: func.func @scalar(
// NATIVE-NEXT:    arith.truncf %{{.*}} : f32 to bf16
// NATIVE-NEXT:    return
func.func @scalar(%x: f32) -> bf16 {
  %y = arith.truncf %x : f32 to bf16
  return %y : bf16
}

// CHECK-LABEL: func.func @vector(
// CHECK:         arith.truncf %{{.*}} : vector<4xf64> to vector<4xf32>
// CHECK-NOT:     arith.truncf
// CHECK:         arith.bitcast %{{.*}} : vector<4xi16> to vector<4xbf16>
// NATIVE-LABEL: func.func @vector(
// NATIVE-NEXT:    arith.truncf %{{.*}} : vector<4xf64> to vector<4xf32>
// NATIVE-NEXT:    arith.truncf %{{.*}} : vector<4xf32> to vector<4xbf16>
func.func @vector(%x: vector<4xf64>) -> vector<4xbf16> {
  %y = arith.truncf %x : vector<4xf64> to vector<4xbf16>
  return %y : vector<4xbf16>
}

// CHECK-LABEL: func.func @half(
// CHECK-NEXT:    arith.truncf %{{.*}} : f32 to f16
// CHECK-NEXT:    arith.truncf %{{.*}} : f64 to f32
// CHECK-NEXT:    arith.truncf %{{.*}} : f32 to f16
func.func @half(%x: f32, %y: f64) -> (f16, f16) {
  %a = arith.truncf %x : f32 to f16
  %b = arith.truncf %y : f64 to f16
  return %a, %b : f16, f16
}

// OPTION: bf16 is always, never or host, got 'maybe'
