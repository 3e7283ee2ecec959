// A kernel becomes a worker that takes programs of the grid from a shared counter.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=16 block-kv=16},canonicalize,cse,tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[WORDS:.*]]: !llvm.ptr) {
// CHECK:       llvm.alloca %{{.*}} x f32 {alignment = 64 : i64}
// CHECK:       scf.while : () -> i64 {
// CHECK-NEXT:    %[[TAKEN:.*]] = llvm.atomicrmw add %[[WORDS]], %{{.*}} monotonic
// CHECK-NEXT:    %[[MORE:.*]] = arith.cmpi slt, %[[TAKEN]], %{{.*}}
// CHECK-NEXT:    scf.condition(%[[MORE]]) %[[TAKEN]]
// CHECK:       ^bb0(%[[PROGRAM:.*]]: i64):
// States are vectors with one lane per query row; the accumulator stays in its buffer.
// CHECK:       scf.for {{.*}} iter_args(%[[M:.*]] = %{{.*}}, %[[L:.*]] = %{{.*}}) -> (vector<16xf32>, vector<16xf32>) {
// Scores: one broadcast element of a key times a column of q, for several keys at once.
// CHECK:         scf.for %{{[a-z0-9]+}} = %c0 to %c64 step %c1 iter_args(%[[SUM:[a-z0-9]+]] = %{{[a-z0-9_]+}},
// CHECK:           %[[COLUMN:[0-9]+]] = llvm.load %{{.*}} : !llvm.ptr -> vector<16xf32>
// CHECK:           %[[KEY:[0-9]+]] = llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK-NEXT:      %[[WIDE:[0-9]+]] = vector.broadcast %[[KEY]] : f32 to vector<16xf32>
// CHECK-NEXT:      vector.fma %[[WIDE]], %[[COLUMN]], %[[SUM]]
// CHECK-NOT:   "tile.
