// A system of a unit triangle: blocks of four rows, whose sums stay in registers, take away what earlier rows say, then what their own do.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile-chunks,canonicalize,cse,tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK:         %[[SOLVED:.*]]:4 = scf.for %{{.*}} = %c0 to %{{.*}} step %c1 iter_args(
// CHECK-COUNT-4:   vector.fma
// CHECK:           scf.yield
// The triangle between the rows of a block: six products.
// CHECK:         llvm.store %[[SOLVED]]#0
// CHECK-COUNT-6: vector.fma
