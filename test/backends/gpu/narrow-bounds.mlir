// Bounds of loops that may need 64 bits are clamped to positions, and what counts to them is.
// RUN: attn-opt %s -p 'gpu-narrow-bounds' | FileCheck %s

// CHECK-LABEL: func.func @captured(
// CHECK-SAME:    %[[LIMIT:[^:]*]]: index
func.func @captured(%limit: index, %out: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  // CHECK-DAG: %[[ENDS:.*]] = arith.minsi %[[LIMIT]]
  // CHECK-DAG: %[[END:.*]] = arith.maxsi %[[ENDS]]
  // CHECK-DAG: %[[PRODUCT:.*]] = arith.muli %[[LIMIT]]
  // CHECK-DAG: arith.constant 16773120 : index
  // CHECK-DAG: %[[BEGINS:.*]] = arith.minsi %[[PRODUCT]]
  // CHECK-DAG: %[[BEGIN:.*]] = arith.maxsi %[[BEGINS]]
  // CHECK: scf.for %[[KV:.*]] = %[[BEGIN]] to %[[END]]
  %begin = arith.muli %limit, %c64 : index
  scf.for %kv = %begin to %limit step %c64 {
    // CHECK: arith.subi %[[END]], %[[KV]]
    %left = arith.subi %limit, %kv : index
    %count = arith.minsi %left, %c64 : index
    %number = arith.index_cast %count : index to i32
    %value = arith.sitofp %number : i32 to f32
    memref.store %value, %out[%c0] : memref<?xf32>
  }
  return
}

// CHECK-LABEL: func.func @sizes(
// CHECK-NOT: arith.maxsi
func.func @sizes(%k: memref<?x?x?x64xf16>) {
  %c2 = arith.constant 2 : index
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %length = memref.dim %k, %c2 : memref<?x?x?x64xf16>
  scf.for %kv = %c0 to %length step %c64 {
  }
  return
}
