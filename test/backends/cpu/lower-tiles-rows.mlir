// RUN: env ATTN_MLIR_CPU=avx512 attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' --split-input-file | FileCheck %s
// RUN: env ATTN_MLIR_CPU=avx2 attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' --split-input-file | FileCheck %s --check-prefix=AVX2

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
// CHECK:           llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
// CHECK:           vector.fma
// AVX2-LABEL: func.func @in_place(
// AVX2:         llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<8xf32>
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

// Of a product with a large transposed tile the other factor and the result are turned; further products find the factor turned.

!t = memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>
!u = memref<?x?x?x128xf32, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: func.func @exchanged(
// CHECK:         llvm.shufflevector
// CHECK:         vector.fma
// CHECK:         llvm.shufflevector
// CHECK:         llvm.store
// CHECK:         scf.for
// CHECK-NOT:     llvm.shufflevector
// CHECK:         vector.fma
func.func @exchanged(%k: !t, %o: !u) attributes {tile.kernel = {block_q = 32, block_kv = 64, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c128 = arith.constant 128 : index
  %x = "tile.load"(%k, %b, %b, %c0, %c16) : (!t, index, index, index, index) -> tensor<16x64xf32>
  %state = "tile.load"(%k, %b, %b, %c16, %c128) : (!t, index, index, index, index) -> tensor<128x64xf32>
  %y = "tile.dot"(%x, %state) {transpose_b = true} : (tensor<16x64xf32>, tensor<128x64xf32>) -> tensor<16x128xf32>
  %z = "tile.dot"(%x, %state) {transpose_b = true} : (tensor<16x64xf32>, tensor<128x64xf32>) -> tensor<16x128xf32>
  "tile.store"(%y, %o, %b, %b, %c0, %c16) : (tensor<16x128xf32>, !u, index, index, index, index) -> ()
  "tile.store"(%z, %o, %b, %b, %c16, %c16) : (tensor<16x128xf32>, !u, index, index, index, index) -> ()
  return
}

// -----

// A wide tile in a buffer lies in bands, four vectors of each row behind one another. What the next turn reads is asked for in pieces, while
// blocks of sums are made, not all of a row at once.

!t = memref<?x?x?x128xf32, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: func.func @bands(
// CHECK-DAG:     %[[IN_BAND:.*]] = arith.constant 63 : i64
// CHECK:         scf.for
// CHECK:           scf.for %[[K:.*]] = %c0 to %c128 step %[[SIZE:.*]] iter_args
// CHECK:             %[[END:.*]] = arith.addi %[[K]], %[[SIZE]]
// CHECK:             "llvm.intr.prefetch"
// CHECK:             scf.for %{{.*}} = %[[K]] to %[[END]]
// CHECK:               arith.andi %{{.*}}, %[[IN_BAND]]
// CHECK:               vector.fma
// With vectors of half the width there are more blocks, and few enough lines for each.
// AVX2-LABEL:  func.func @bands(
// AVX2:          "llvm.intr.prefetch"
// AVX2:          scf.for %{{.*}} = %c0 to %c128 step %c1 iter_args
// AVX2:            vector.fma
func.func @bands(%q: !t, %k: !t, %o: !t, %n: index) attributes {tile.kernel = {block_q = 64, block_kv = 64, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %state = "tile.fill"(%zero) : (f32) -> tensor<128x128xf32>
  scf.for %i = %c0 to %n step %c64 {
    %x = "tile.load"(%q, %b, %b, %i, %c64) : (!t, index, index, index, index) -> tensor<64x128xf32>
    %y = "tile.dot"(%x, %state) {transpose_b = false} : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
    "tile.store"(%y, %o, %b, %b, %i, %c64) : (tensor<64x128xf32>, !t, index, index, index, index) -> ()
  }
  return
}
