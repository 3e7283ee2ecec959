// Where bounds do not tell all, each block is classified: skipped, full, or masked elementwise.
// RUN: attn-opt %inputs/document.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK:       scf.for
// CHECK:         "attn.range"
// CHECK:         %[[RESULT:.*]]:3 = scf.if %[[ANY:.*]] ->
// CHECK:           scf.if %[[ALL:.*]] ->
// CHECK:             "tile.dot"
// CHECK-NOT:         arith.select
// CHECK:           } else {
// CHECK:             "tile.dot"
// CHECK:             arith.select
// CHECK:         } else {
// CHECK-NEXT:      scf.yield %{{.*}}, %{{.*}}, %{{.*}}
// CHECK-NEXT:    }
// CHECK-NEXT:    scf.yield %[[RESULT]]#0
