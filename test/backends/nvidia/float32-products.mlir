// Products of f32 tiles in scans are six products of bf16 pieces, the smallest first, from zero; sums before them are added in f32.
// RUN: attn-opt %s -p 'nvidia-float32-products,canonicalize,cse' --split-input-file | FileCheck %s

!m = memref<?x?x?x8xf32>

// The pieces of %x are made once, where it is first needed; that is also where it is loaded.
// CHECK-LABEL: func.func @scan(
// CHECK:       scf.for {{.*}} iter_args(%[[S:[a-z0-9_]+]] = {{.*}})
// CHECK-NEXT:    %[[X:[0-9]+]] = "tile.load"(%{{.*}}) : {{.*}} -> tensor<8x8xf32>
// CHECK-NEXT:    %[[P:[0-9]+]]:3 = "tile.map"
// CHECK:           %[[E:[a-z0-9_]+]] = tensor.extract %[[X]][
// CHECK-NEXT:      %[[HIGH:[0-9]+]] = arith.truncf %[[E]] : f32 to bf16
// CHECK-NEXT:      %[[BACK:[0-9]+]] = arith.extf %[[HIGH]] : bf16 to f32
// CHECK-NEXT:      %[[REST:[0-9]+]] = arith.subf %[[E]], %[[BACK]] : f32
// CHECK-NEXT:      %[[MIDDLE:[0-9]+]] = arith.truncf %[[REST]] : f32 to bf16
// CHECK:           %[[LOW:[0-9]+]] = arith.truncf %{{.*}} : f32 to bf16
// CHECK-NEXT:      "tile.yield"(%[[HIGH]], %[[MIDDLE]], %[[LOW]])
// CHECK:         %[[A:[0-9]+]] = "tile.dot"(%[[P]]#2, %[[P]]#0) {transpose_a = true, transpose_b = false}
// CHECK-NEXT:    %[[B:[0-9]+]] = "tile.dot_add"(%[[A]], %[[P]]#1, %[[P]]#1) {transpose_a = true, transpose_b = false}
// CHECK-NEXT:    %[[C:[0-9]+]] = "tile.dot_add"(%[[B]], %[[P]]#0, %[[P]]#2)
// CHECK-NEXT:    %[[D:[0-9]+]] = "tile.dot_add"(%[[C]], %[[P]]#1, %[[P]]#0)
// CHECK-NEXT:    %[[F:[0-9]+]] = "tile.dot_add"(%[[D]], %[[P]]#0, %[[P]]#1)
// CHECK-NEXT:    %[[WHOLE:[0-9]+]] = "tile.dot_add"(%[[F]], %[[P]]#0, %[[P]]#0)
// CHECK-NOT:     arith.truncf
// CHECK:         "tile.map"
// CHECK:           %[[OLD:[a-z0-9_]+]] = tensor.extract %[[S]][
// CHECK-NEXT:      %[[FACTOR:[a-z0-9_]+]] = tensor.extract %{{.*}}[%{{[a-z0-9]+}}] : tensor<8xf32>
// CHECK-NEXT:      %[[CARRIED:[0-9]+]] = arith.mulf %[[OLD]], %[[FACTOR]]
// CHECK-NEXT:      %[[NEW:[a-z0-9_]+]] = tensor.extract %[[WHOLE]][
// CHECK-NEXT:      arith.addf %[[CARRIED]], %[[NEW]] : f32
func.func @scan(%q: !m, %carry: tensor<8xf32>, %state: tensor<8x8xf32>, %n: index, %o: !m) attributes {tile.kernel = {grid = "chunks", block_q = 8, outputs = ["store"]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %last = scf.for %i = %c0 to %n step %c1 iter_args(%s = %state) -> (tensor<8x8xf32>) {
    %x = "tile.load"(%q, %c0, %c0, %i, %c8) : (!m, index, index, index, index) -> tensor<8x8xf32>
    %next = "tile.dot_rescale"(%s, %carry, %x, %x) {transpose_a = true, transpose_b = false} : (tensor<8x8xf32>, tensor<8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    scf.yield %next : tensor<8x8xf32>
  }
  "tile.store"(%last, %o, %c0, %c0, %c0, %c8) : (tensor<8x8xf32>, !m, index, index, index, index) -> ()
  return
}

// -----

// Products of 16 bits, and kernels that are no scans, stay as they are.
// CHECK-LABEL: func.func @half(
// CHECK:         "tile.dot"({{.*}}) {transpose_b = true} : (tensor<8x8xf16>, tensor<8x8xf16>) -> tensor<8x8xf32>
// CHECK-NOT:     tile.map
func.func @half(%x: tensor<8x8xf16>) -> tensor<8x8xf32> attributes {tile.kernel = {grid = "chunks", block_q = 8, outputs = []}} {
  %y = "tile.dot"(%x, %x) {transpose_b = true} : (tensor<8x8xf16>, tensor<8x8xf16>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @rows(
// CHECK:         "tile.dot"({{.*}}) {transpose_b = true} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
func.func @rows(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {tile.kernel = {grid = "rows", block_q = 8, outputs = []}} {
  %y = "tile.dot"(%x, %x) {transpose_b = true} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
