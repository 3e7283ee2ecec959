// A product whose elements on one side of the diagonal no map chooses says so, and blocks that lie there are not computed. It says nothing
// where an element is read for a condition, at other indices, or by something else than a map.
// RUN: attn-opt %s -p 'tile-schedule{target=cpu}' | FileCheck %s
// RUN: attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s --check-prefix=LOOPS

// CHECK-LABEL: func.func @unread(
// CHECK:         "tile.dot"{{.*}} unread = "above"
// CHECK:         "tile.dot"
// CHECK-NOT:     unread
// CHECK:         return

// LOOPS:         %[[BEHIND:.*]] = arith.addi %[[ROW:.*]], %c{{[0-9]+}} : index
// LOOPS:         %[[READ:.*]] = arith.cmpi sgt, %[[BEHIND]], %[[COLUMN:.*]] : index
// LOOPS:         scf.if %[[READ]] {
// LOOPS:           vector.fma
!t = memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>
func.func @unread(%k: !t) attributes {tile.kernel = {block_q = 64, block_kv = 64, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %x = "tile.load"(%k, %b, %b, %b, %c64) : (!t, index, index, index, index) -> tensor<64x64xf32>
  %pairs = "tile.dot"(%x, %x) {transpose_b = false} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %compared = "tile.dot"(%x, %x) {transpose_b = false} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %apart = "tile.dot"(%x, %x) {transpose_b = false} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %stored = "tile.dot"(%x, %x) {transpose_b = false} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %made = "tile.map"(%c64, %c64) ({
  ^bb0(%i: index, %j: index):
    %before = arith.cmpi sge, %i, %j : index
    %y = tensor.extract %pairs[%i, %j] : tensor<64x64xf32>
    %other = tensor.extract %apart[%i, %b] : tensor<64x64xf32>
    %third = tensor.extract %compared[%i, %j] : tensor<64x64xf32>
    %fourth = tensor.extract %stored[%i, %j] : tensor<64x64xf32>
    %large = arith.cmpf ogt, %third, %zero : f32
    %chosen = arith.andi %before, %large : i1
    %sum = arith.addf %y, %other : f32
    %all = arith.addf %sum, %fourth : f32
    %z = arith.select %chosen, %all, %zero : f32
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x64xf32>
  "tile.store"(%made, %k, %b, %b, %b, %c64) : (tensor<64x64xf32>, !t, index, index, index, index) -> ()
  "tile.store"(%stored, %k, %b, %b, %b, %c64) : (tensor<64x64xf32>, !t, index, index, index, index) -> ()
  return
}
