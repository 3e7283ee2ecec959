// RUN: attn-opt %s -p 'attn-tile{block-q=16},canonicalize,cse' --split-input-file | FileCheck %s

// Sums over groups of heads: a loop over the heads of a group, rounded when stored.

!x = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @head_sum(
// CHECK-SAME:    %[[X:[^:]*]]: memref<?x?x?x8xf16, {{[^>]*>>}}, %[[LIKE:[^:]*]]: memref<?x?x?x4xf32
// CHECK-SAME:    grid = "rows", outputs = ["store"], over = 1 : i64, score = f32
// CHECK:         %[[GROUP:.*]] = arith.divsi
// CHECK:         %[[FIRST:.*]] = arith.muli %{{.*}}, %[[GROUP]]
// CHECK:         %[[SUM:.*]] = scf.for %[[N:.*]] = %c0 to %[[GROUP]] step %c1
// CHECK:           %[[HEAD:.*]] = arith.addi %[[FIRST]], %[[N]]
// CHECK:           "tile.load"(%[[X]], %{{.*}}, %[[HEAD]]
// CHECK:         "tile.store"(%[[SUM]]
func.func @head_sum(%x: !x, %like: tensor<?x?x?x4xf32>) -> !x {
  %r = "attn.head_sum"(%x, %like) : (!x, tensor<?x?x?x4xf32>) -> !x
  return %r : !x
}

// -----

// Gradients of decays: what passes into each interval, and sums of what its positions before add and take.

!a = tensor<?x?x?xf32>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @decay_gradient(
// CHECK-SAME:    block_q = 64 : i64, {{.*}}grid = "rows", outputs = ["store"], over = 0 : i64
// CHECK:         %[[STEPS:.*]] = "tile.map"(%c64)
// CHECK:           arith.subf
// CHECK:         %[[SUMS:.*]] = "tile.cumsum"(%[[STEPS]]) {reverse = false}
// CHECK:         %[[ROWS:.*]] = "tile.map"(%c4, %c8)
// CHECK:         reductions = ["sum"]
// CHECK:         %[[PASSING:.*]] = "tile.map"(%c1, %c4)
// CHECK:         "tile.map"(%c64)
// CHECK-DAG:       tensor.extract %[[PASSING]][%c0]
// CHECK-DAG:       tensor.extract %[[SUMS]]
// CHECK:           arith.subf
func.func @decay_gradient(%a: !a, %b: !a, %s: !s, %e: !s) -> !a {
  %r = "attn.decay_gradient"(%a, %b, %s, %e) {interval = 64 : i64, rows = 4 : i64} : (!a, !a, !s, !s) -> !a
  return %r : !a
}

// -----

// Of two scans in each direction: sums of what both give, made where they are read.

!a = tensor<?x?x?xf32>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @of_sums(
// CHECK-SAME:    %[[A:[^:]*]]: memref<?x?x?xf32, {{[^>]*>>}}, %[[A_2:[^:]*]]: memref<?x?x?xf32, {{[^>]*>>}}, %[[B:[^:]*]]: memref<?x?x?xf32, {{[^>]*>>}}, %[[B_2:[^:]*]]: memref
// CHECK:           %[[X:.*]] = memref.load %[[A]][
// CHECK:           %[[X_2:.*]] = memref.load %[[A_2]][
// CHECK:           %[[TAKEN:.*]] = arith.addf %[[X]], %[[X_2]]
// CHECK:           %[[Y:.*]] = memref.load %[[B]][
// CHECK:           %[[Y_2:.*]] = memref.load %[[B_2]][
// CHECK:           %[[ADDED:.*]] = arith.addf %[[Y]], %[[Y_2]]
// CHECK:           arith.subf %[[ADDED]], %[[TAKEN]]
// CHECK:         "tile.cumsum"
// CHECK:         "tile.map"(%c4, %c8)
// CHECK-COUNT-3:   memref.load
// CHECK:           arith.addf
// CHECK:           arith.mulf
func.func @of_sums(%a: !a, %a_2: !a, %b: !a, %b_2: !a, %s: !s, %e: !s, %e_2: !s) -> !a {
  %r = "attn.decay_gradient_sum"(%a, %a_2, %b, %b_2, %s, %e, %e_2) {interval = 64 : i64, rows = 4 : i64} : (!a, !a, !a, !a, !s, !s, !s) -> !a
  return %r : !a
}

// -----

// With offsets a program has a whole sequence, and a loop over its intervals.

!a = tensor<?x?x?x4xf32>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @sequences(
// CHECK-SAME:    blocks = 1 : i64, {{.*}}grid = "chunks", outputs = ["store"], over = 0 : i64, score = f32, sequences = 4 : i64
// CHECK:         scf.for
// CHECK:           "tile.cumsum"{{.*}} {reverse = false} : (tensor<64x4xf32>)
// CHECK:           "tile.store"
func.func @sequences(%a: !a, %b: !a, %s: !s, %e: !s, %offsets: tensor<?xi32>) -> !a {
  %r = "attn.decay_gradient"(%a, %b, %s, %e, %offsets) {interval = 64 : i64, rows = 4 : i64} : (!a, !a, !s, !s, tensor<?xi32>) -> !a
  return %r : !a
}
