// bf16 is an integer of 16 bits where the processor has no instructions for it, wherever such a number goes; f64 goes to 16 bits by way of f32.
// RUN: attn-opt %s -p 'cpu-expand-casts{bf16=always}' | FileCheck %s
// RUN: attn-opt %s -p 'cpu-expand-casts{bf16=never}' | FileCheck %s --check-prefix=NATIVE
// RUN: not attn-opt %s -p 'cpu-expand-casts{bf16=maybe}' 2>&1 | FileCheck %s --check-prefix=OPTION

// CHECK-LABEL: func.func @store(
// CHECK-NOT:     arith.truncf
// CHECK:         arith.bitcast %{{.*}} : f32 to i32
// CHECK:         arith.cmpf uno
// CHECK:         arith.select %{{.*}}, %{{.*}}, %{{.*}} : i32
// CHECK:         %[[WORD:.*]] = arith.trunci %{{.*}} : i32 to i16
// CHECK:         llvm.store %[[WORD]], %{{.*}} {alignment = 2 : i64} : i16, !llvm.ptr
// NATIVE-LABEL: func.func @store(
// NATIVE-NEXT:    arith.truncf %{{.*}} : f32 to bf16
// NATIVE-NEXT:    llvm.store
func.func @store(%x: f32, %to: !llvm.ptr) {
  %y = arith.truncf %x : f32 to bf16
  llvm.store %y, %to {alignment = 2 : i64} : bf16, !llvm.ptr
  return
}

// CHECK-LABEL: func.func @chosen(
// CHECK:         %[[HALF:.*]] = arith.constant dense<16128> : vector<4xi16>
// CHECK:         %[[MOVED:.*]] = scf.if %{{.*}} -> (vector<4xi16>) {
// CHECK:           llvm.load %{{.*}} : !llvm.ptr -> vector<4xi16>
// CHECK:           scf.yield %[[HALF]] : vector<4xi16>
// CHECK:         arith.extui %[[MOVED]] : vector<4xi16> to vector<4xi32>
// CHECK:         arith.shli
// CHECK:         arith.bitcast %{{.*}} : vector<4xi32> to vector<4xf32>
// NATIVE-LABEL: func.func @chosen(
// NATIVE:         arith.extf %{{.*}} : vector<4xbf16> to vector<4xf32>
func.func @chosen(%which: i1, %from: !llvm.ptr) -> vector<4xf32> {
  %half = arith.constant dense<0.5> : vector<4xbf16>
  %x = scf.if %which -> vector<4xbf16> {
    %loaded = llvm.load %from {alignment = 2 : i64} : !llvm.ptr -> vector<4xbf16>
    scf.yield %loaded : vector<4xbf16>
  } else {
    scf.yield %half : vector<4xbf16>
  }
  %y = arith.extf %x : vector<4xbf16> to vector<4xf32>
  return %y : vector<4xf32>
}

// CHECK-LABEL: func.func @wide(
// CHECK:         arith.truncf %{{.*}} : vector<4xf64> to vector<4xf32>
// CHECK-NOT:     arith.truncf
// CHECK:         llvm.store %{{.*}} : vector<4xi16>, !llvm.ptr
// NATIVE-LABEL: func.func @wide(
// NATIVE-NEXT:    arith.truncf %{{.*}} : vector<4xf64> to vector<4xf32>
// NATIVE-NEXT:    arith.truncf %{{.*}} : vector<4xf32> to vector<4xbf16>
func.func @wide(%x: vector<4xf64>, %to: !llvm.ptr) {
  %y = arith.truncf %x : vector<4xf64> to vector<4xbf16>
  llvm.store %y, %to {alignment = 2 : i64} : vector<4xbf16>, !llvm.ptr
  return
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
