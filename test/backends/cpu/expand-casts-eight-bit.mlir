// 8-bit floats are bytes on every processor, converted by integer arithmetic.
// RUN: attn-opt %s -p 'cpu-expand-casts{bf16=never}' | FileCheck %s

// CHECK-LABEL: func.func @moved(
// CHECK-NEXT:    %[[BYTES:.*]] = llvm.load %{{.*}} : !llvm.ptr -> vector<4xi8>
// CHECK-NEXT:    llvm.store %[[BYTES]], %{{.*}} : vector<4xi8>, !llvm.ptr
func.func @moved(%from: !llvm.ptr, %to: !llvm.ptr) {
  %bytes = llvm.load %from {alignment = 1 : i64} : !llvm.ptr -> vector<4xi8>
  %x = arith.bitcast %bytes : vector<4xi8> to vector<4xf8E4M3FN>
  %y = arith.bitcast %x : vector<4xf8E4M3FN> to vector<4xi8>
  llvm.store %y, %to {alignment = 1 : i64} : vector<4xi8>, !llvm.ptr
  return
}

// CHECK-LABEL: func.func @rounded(
// CHECK-NOT:     f8E5M2
// CHECK:         %[[HALF:.*]] = arith.constant 56 : i8
// CHECK:         arith.minui
// CHECK:         arith.cmpf uno
// CHECK:         %[[BYTE:.*]] = arith.trunci %{{.*}} : i32 to i8
// CHECK:         %[[CHOSEN:.*]] = arith.select %{{.*}}, %[[BYTE]], %[[HALF]] : i8
// CHECK:         arith.extui %[[CHOSEN]] : i8 to i32
// CHECK-NOT:     f8E5M2
// CHECK:         arith.extf %{{.*}} : f32 to f64
func.func @rounded(%x: f32, %which: i1) -> f64 {
  %half = arith.constant 0.5 : f8E5M2
  %y = arith.truncf %x : f32 to f8E5M2
  %z = arith.select %which, %y, %half : f8E5M2
  %w = arith.extf %z : f8E5M2 to f64
  return %w : f64
}
