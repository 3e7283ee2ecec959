// RUN: attn-opt %s -p 'amd-keep-loops,canonicalize,cse' | FileCheck %s

// A loop that runs once stays a loop: its end is the length of what it reads, where that is less.
// CHECK-LABEL: func.func @once(
// CHECK-SAME:    %[[K:[^:]*]]: memref<?x?x?x16xf16
// CHECK:         %[[LENGTH:.*]] = memref.dim %[[K]], %{{.*}}
// CHECK:         %[[END:.*]] = arith.minsi %[[LENGTH]], %{{.*}}
// CHECK:         scf.for %{{.*}} = %{{.*}} to %[[END]] step
func.func @once(%k: memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, %out: memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, %b: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  scf.for %j = %c0 to %c1 step %c64 {
    %tile = "tile.load"(%k, %b, %b, %j, %c1) : (memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x16xf16>
    "tile.store"(%tile, %out, %b, %b, %j, %c1) : (tensor<64x16xf16>, memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  }
  return
}

// Of loops that never run the last one stays.
// CHECK-LABEL: func.func @never(
// CHECK-COUNT-1: scf.for
// CHECK-NOT:     scf.for
func.func @never(%k: memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, %out: memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, %b: index) {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  scf.for %j = %c0 to %c0 step %c64 {
    %tile = "tile.load"(%k, %b, %b, %j, %c64) : (memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x16xf16>
    "tile.store"(%tile, %out, %b, %b, %j, %c64) : (tensor<64x16xf16>, memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  }
  scf.for %j = %c0 to %c0 step %c64 {
    %tile = "tile.load"(%k, %b, %b, %j, %c64) : (memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x16xf16>
    "tile.store"(%tile, %out, %b, %b, %j, %c64) : (tensor<64x16xf16>, memref<?x?x?x16xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  }
  return
}
