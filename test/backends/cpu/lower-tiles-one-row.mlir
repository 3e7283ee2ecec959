// A single query has its vectors along the head dimension: of keys and values nothing is broadcast.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=1 block-kv=16},canonicalize,cse,tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// Scores: eight keys at once, each summed up across its vector in the end.
// CHECK:         scf.for %[[D:[a-z0-9]+]] = %c0 to %c64 step %c{{[0-9]+}} iter_args(%{{[a-z0-9]+}} = %{{[a-z0-9_]+}},
// CHECK:           %[[QUERY:[0-9]+]] = llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<[[WIDTH:[0-9]+]]xf32>
// CHECK:           %[[KEY:[0-9]+]] = llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<[[WIDTH]]xf32>
// CHECK:           vector.fma %[[KEY]], %[[QUERY]], %{{.*}} : vector<[[WIDTH]]xf32>
// CHECK-COUNT-8: vector.reduction <add>
// Output: a broadcast weight times a value, with all columns of a value in registers.
// CHECK:         scf.for %[[J:[a-z0-9]+]] = %c0 to %{{.*}} iter_args(
// CHECK:           %[[WEIGHT:[0-9]+]] = llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK:           %[[WIDE:[0-9]+]] = vector.broadcast %[[WEIGHT]] : f32 to vector<[[WIDTH]]xf32>
// CHECK:           vector.fma %{{.*}}, %[[WIDE]], %{{.*}} : vector<[[WIDTH]]xf32>
