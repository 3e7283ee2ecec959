// In a delta rule whose inputs have 16 bits, its scans over f32 multiply two pieces: three products, the smallest first.
// RUN: attn-opt %s -p nvidia-float32-products | FileCheck %s

!m = memref<?x?x?x8xbf16>

// CHECK-LABEL: func.func @solves(
// CHECK-SAME:    attributes {nvidia.pieces = 2 : i64
func.func @solves(%q: !m, %a: tensor<8x8xf32>, %n: index) attributes {tile.kernel = {grid = "chunks", block_q = 8, outputs = []}} {
  %c0 = arith.constant 0 : index
  %x = "tile.load"(%q, %c0, %c0, %c0, %n) : (!m, index, index, index, index) -> tensor<8x8xbf16>
  %u = "tile.solve_unit"(%a, %a) {upper = false} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return
}

// CHECK-LABEL: func.func @sums(
// CHECK-SAME:    attributes {nvidia.pieces = 2 : i64
// CHECK:         %[[P:[0-9]+]]:2 = "tile.map"
// CHECK:         %[[A:[0-9]+]] = "tile.dot"(%[[P]]#1, %[[P]]#0)
// CHECK-NEXT:    %[[B:[0-9]+]] = "tile.dot_add"(%[[A]], %[[P]]#0, %[[P]]#1)
// CHECK-NEXT:    %[[C:[0-9]+]] = "tile.dot_add"(%[[B]], %[[P]]#0, %[[P]]#0)
// CHECK-NEXT:    return %[[C]]
func.func @sums(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {tile.kernel = {grid = "chunks", block_q = 8, outputs = []}} {
  %y = "tile.dot"(%x, %x) {transpose_b = true} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
