// A single query has its vectors along the head dimension: of keys and values nothing is broadcast.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=1 block-kv=16},canonicalize,cse,tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-online-rewrite,canonicalize,attn-tile{block-q=1 block-kv=16},canonicalize,cse,tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s --check-prefix=HALF

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

// Of 16 bits, keys and values are widened where they are multiplied: no buffer has them.
// HALF-LABEL: func.func @attention(
// HALF-NOT:     arith.extf %{{.*}} : vector<{{.*}}xf16>
// HALF:         scf.for %{{[a-z0-9]+}} = %c0 to %c32 step
// HALF-COUNT-8:   arith.extf %{{.*}} : vector<[[LANES:[0-9]+]]xf16> to vector<[[LANES]]xf32>
// HALF-COUNT-8: vector.reduction <add>
// HALF:         vector.broadcast %{{.*}} : f32 to vector<[[LANES]]xf32>
// HALF:         %[[VALUE:[0-9]+]] = arith.extf %{{.*}} : vector<[[LANES]]xf16> to vector<[[LANES]]xf32>
// HALF-NEXT:    vector.fma %[[VALUE]],
