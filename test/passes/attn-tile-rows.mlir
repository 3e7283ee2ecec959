// A kernel takes memrefs, outputs last; states are tiles of one value a row, carried through the loop over keys.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=32 block-kv=16},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %q: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>
// CHECK-SAME:    %o: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, %lse: memref<?x?x?xf32, strided<[?, ?, ?]>>)
// CHECK-SAME:    attributes {tile.kernel = {block_kv = 16 : i64, block_q = 32 : i64}}
// CHECK-DAG:   %[[LOWEST:.*]] = arith.constant -3.40282347E+38 : f32
// CHECK-DAG:   %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:       %[[Q:.*]] = "tile.load"(%q, {{.*}} -> tensor<32x64xf32>
// CHECK:       %[[INIT:.*]]:2 = "tile.map"
// CHECK:         "tile.yield"(%[[LOWEST]],
// CHECK:       %[[ZERO:.*]] = "tile.fill"
// CHECK:       scf.for %[[KV:.*]] = {{.*}} iter_args(%[[M:.*]] = %[[INIT]]#0, %[[L:.*]] = %[[INIT]]#1, %[[ACC:.*]] = %[[ZERO]])
// CHECK:         %[[K:.*]] = "tile.load"(%k, {{.*}}%[[KV]], {{.*}} -> tensor<?x64xf32>
// CHECK-NEXT:    %[[S:.*]] = "tile.dot"(%[[Q]], %[[K]]) {transpose_b = true}
// CHECK-NEXT:    %[[SCALED:.*]]:2 = "tile.map"
// CHECK:           tensor.extract %[[S]]
// CHECK-NEXT:      arith.mulf
// CHECK-NEXT:      "tile.yield"
// CHECK-NEXT:    {reductions = ["max"]
// CHECK:         %[[ROW:.*]]:3 = "tile.map"
// CHECK:           arith.maximumf
// CHECK:         %[[P:.*]]:2 = "tile.map"
// CHECK:           tensor.extract %[[SCALED]]#0
// CHECK:           math.exp
// CHECK:         {reductions = ["sum"]
// CHECK:         %[[V:.*]] = "tile.load"(%v,
// CHECK-NEXT:    "tile.dot_rescale"(%[[ACC]], %[[ROW]]#1, %[[P]]#0, %[[V]]) {transpose_b = false}
// CHECK-NEXT:    scf.yield
