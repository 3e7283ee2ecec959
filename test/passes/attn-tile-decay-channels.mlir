// With the function attribute `tile.decay_channels`, what decays of key channels make of a chunk is one op, in both directions.
// RUN: sed -e 's/) {$/) attributes {tile.decay_channels} {/' %inputs/linear/gla.mlir > %t.forward
// RUN: sed -e 's/"forward"/"backward"/' %t.forward > %t.backward
// RUN: attn-opt %t.forward -p 'attn-chunk-rewrite,attn-tile,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %t.backward -p 'attn-chunk-rewrite,attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=REVERSE
// RUN: attn-run %t.forward %t.backward --q-len 37 --batch 1 -p 'attn-chunk-rewrite{chunk=16},attn-tile' | FileCheck %s --check-prefix=EQUAL
// RUN: sed -e 's/) {$/) attributes {tile.decay_channels} {/' %inputs/linear/value-channels.mlir > %t.values
// RUN: not attn-opt %t.values -p 'attn-chunk-rewrite{chunk=16},attn-tile' 2>&1 | FileCheck %s --check-prefix=INVALID

// CHECK:      %[[G:.*]] = "tile.map"
// CHECK:        arith.maximumf
// CHECK-NOT:  tile.cumsum
// CHECK:      %[[Q:.*]] = "tile.load"(%q
// CHECK-NEXT: %[[K:.*]] = "tile.load"(%k
// CHECK-NEXT: %[[V:.*]] = "tile.load"(%v
// CHECK-NEXT: %[[MADE:.*]]:4 = "tile.decay_channels"(%[[Q]], %[[K]], %[[G]], %{{.*}}) {reverse = false}
// CHECK-NEXT: %[[FIRST:.*]] = "tile.dot"(%[[MADE]]#0, %[[S:.*]]) {transpose_b = false}
// CHECK-NEXT: %[[O:.*]] = "tile.dot_add"(%[[FIRST]], %[[MADE]]#2, %[[V]])
// CHECK-NEXT: "tile.store"(%[[O]], %o
// CHECK-NEXT: %[[NEXT:.*]] = "tile.dot_rescale"(%[[S]], %[[MADE]]#3, %[[MADE]]#1, %[[V]]) {transpose_a = true, transpose_b = false}
// CHECK-NEXT: scf.yield %[[NEXT]]

// REVERSE: "tile.decay_channels"({{.*}}) {reverse = true}

// EQUAL: PASS
// EQUAL: PASS

// INVALID: error: attn-tile: 'tile.decay_channels' holds for exponentials of key channels' decays, without products
