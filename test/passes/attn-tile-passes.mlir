// Two steps make two passes over keys; only the second multiplies with v.
// RUN: attn-opt %inputs/std-temperature.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK:       %[[INIT:.*]]:5 = "tile.map"
// CHECK:       %[[ZERO:.*]] = "tile.fill"
// CHECK:       %[[FIRST:.*]]:4 = scf.for
// CHECK:         "tile.dot"
// CHECK-NOT:     "tile.load"(%v
// CHECK:         scf.yield
// CHECK:       scf.for {{.*}} iter_args(%[[L:.*]] = %[[INIT]]#4, %[[ACC:.*]] = %[[ZERO]])
// CHECK:         "tile.dot"
// CHECK:           tensor.extract %[[FIRST]]
// CHECK:         "tile.load"(%v
// CHECK:         "tile.dot_
// CHECK:         scf.yield
// CHECK-NOT:   scf.for
