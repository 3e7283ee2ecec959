// RUN: attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' --split-input-file | FileCheck %s

// A tile of whole vectors is read where it is, and copied only where rows are missing. While it is multiplied, the rows of the loop's next
// turn are asked for: 64 bytes at a time.

!t = memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: func.func @in_place(
// CHECK:         scf.for
// CHECK:           %[[WHOLE:.*]] = arith.cmpi sge, %{{.*}}, %c64
// CHECK:           arith.select %[[WHOLE]], %{{.*}}, %{{.*}} : !llvm.ptr
// CHECK:           scf.if %[[WHOLE]] {
// CHECK-NEXT:      } else {
// CHECK:             llvm.store
// CHECK:           "llvm.intr.prefetch"(%{{.*}}) <{cache = 1 : i32, hint = 3 : i32, rw = 0 : i32}>
// CHECK:           llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<{{4|8|16}}xf32>
// CHECK:           vector.fma
func.func @in_place(%k: !t, %o: !t, %n: index) attributes {tile.kernel = {block_q = 64, block_kv = 64, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %none = "tile.fill"(%zero) : (f32) -> tensor<64x64xf32>
  %all = scf.for %i = %c0 to %n step %c64 iter_args(%sum = %none) -> (tensor<64x64xf32>) {
    %left = arith.subi %n, %i : index
    %x = "tile.load"(%k, %b, %b, %i, %left) : (!t, index, index, index, index) -> tensor<64x64xf32>
    %next = "tile.dot_add"(%sum, %x, %x) {transpose_b = false} : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    scf.yield %next : tensor<64x64xf32>
  }
  "tile.store"(%all, %o, %b, %b, %c0, %c64) : (tensor<64x64xf32>, !t, index, index, index, index) -> ()
  return
}

// -----

// A map that only exchanges rows and columns is done in squares, in registers; what it reads may lie in memory, and what it makes goes
// there at once if nothing else needs it.

!t = memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>
!u = memref<?x?x?x32xf32, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: func.func @turned(
// CHECK:         llvm.shufflevector
// CHECK:         llvm.store %{{.*}} {alignment = 4 : i64} : vector<{{4|8|16}}xf32>
// CHECK-NOT:     llvm.load
// CHECK:         return
func.func @turned(%k: !t, %o: !u) attributes {tile.kernel = {block_q = 32, block_kv = 64, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %x = "tile.load"(%k, %b, %b, %c0, %c32) : (!t, index, index, index, index) -> tensor<32x64xf32>
  %y = "tile.map"(%c64, %c32) ({
  ^bb0(%i: index, %j: index):
    %e = tensor.extract %x[%j, %i] : tensor<32x64xf32>
    "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x32xf32>
  "tile.store"(%y, %o, %b, %b, %c0, %c64) : (tensor<64x32xf32>, !u, index, index, index, index) -> ()
  return
}
