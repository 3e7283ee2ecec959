// What rows of o get of their own row of v stands on the diagonal of the pairs' weights, where v is multiplied as it comes.
// RUN: attn-opt %inputs/linear/skip.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s

// With another v it is added behind the products.
// RUN: sed -e 's/arith.mulf %%x, %%dt/arith.addf %%x, %%dt/' %inputs/linear/skip.mlir > %t.mlir
// RUN: attn-opt %t.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=APART
// RUN: attn-run %t.mlir --q-len 23 -p 'attn-chunk-rewrite{chunk=16},attn-tile' | FileCheck %s --check-prefix=SAME

// CHECK:      %[[HEAD:.*]] = "tile.program_id"() {axis = 1 : i64}
// CHECK:      scf.for
// The factors of rows of v.
// CHECK:        "tile.map"
// CHECK:        %[[SKIP:[a-z0-9]*]] = "tile.map"
// CHECK-NEXT:   ^bb0(%{{[a-z0-9]*}}: index):
// CHECK-NEXT:     memref.load %arg5[%[[HEAD]]]
// CHECK:          %[[OWN:.*]] = arith.cmpi eq, %[[ROW:.*]], %[[COLUMN:.*]] : index
// CHECK-NEXT:     %[[FACTOR:.*]] = tensor.extract %[[SKIP]][%[[ROW]]]
// CHECK-NEXT:     %[[SUM:.*]] = arith.addf %[[WEIGHTED:.*]], %[[FACTOR]]
// CHECK-NEXT:     arith.select %[[OWN]], %[[SUM]], %[[WEIGHTED]]
// CHECK:        "tile.dot_rescale"
// CHECK-NEXT:   "tile.store"

// APART:      %[[PAIRS:.*]] = "tile.dot_rescale"
// APART:      "tile.map"
// APART:        tensor.extract %[[PAIRS]]
// APART:        arith.addf
// APART:      "tile.store"
// SAME: PASS
