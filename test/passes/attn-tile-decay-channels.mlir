// With the function attribute `tile.decay_channels`, what decays of channels make of a chunk is one op, in both directions; of value channels in scans with products.
// RUN: sed -e 's/) {$/) attributes {tile.decay_channels} {/' %inputs/linear/gla.mlir > %t.forward
// RUN: sed -e 's/"forward"/"backward"/' %t.forward > %t.backward
// RUN: attn-opt %t.forward -p 'attn-chunk-rewrite,attn-tile,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %t.backward -p 'attn-chunk-rewrite,attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=REVERSE
// RUN: attn-run %t.forward %t.backward --q-len 37 --batch 1 -p 'attn-chunk-rewrite{chunk=16},attn-tile' | FileCheck %s --check-prefix=EQUAL
// RUN: sed -e 's/) {$/) attributes {tile.decay_channels} {/' %inputs/linear/value-channels.mlir > %t.values
// RUN: sed -e 's/"forward"/"backward"/' %t.values > %t.values-backward
// RUN: attn-opt %t.values -p 'attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=VALUES
// RUN: attn-run %t.values %t.values-backward --q-len 37 --batch 1 -p 'attn-chunk-rewrite{chunk=16},attn-tile' | FileCheck %s --check-prefix=EQUAL
// RUN: sed -e 's/) {$/) attributes {tile.decay_channels} {/' %inputs/linear/simple-gla.mlir > %t.heads
// RUN: not attn-opt %t.heads -p 'attn-chunk-rewrite{chunk=16},attn-tile' 2>&1 | FileCheck %s --check-prefix=INVALID

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

// VALUES:      %[[G:.*]] = "tile.map"
// VALUES:        arith.maximumf
// VALUES:      %[[Q:.*]] = "tile.load"(%q
// VALUES-NEXT: %[[K:.*]] = "tile.load"(%k
// VALUES-NEXT: %[[V:.*]] = "tile.load"(%v
// VALUES-NEXT: %[[X:.*]] = "tile.load"(%factor
// VALUES-NEXT: %[[OUTSIDE:.*]] = "tile.dot"(%[[Q]], %[[S:.*]]) {transpose_b = true}
// VALUES-NEXT: %[[A:.*]] = "tile.dot"(%[[Q]], %[[K]]) {transpose_b = true}
// VALUES-NEXT: %[[MADE:.*]]:4 = "tile.decay_values"(%[[A]], %[[OUTSIDE]], %[[V]], %[[G]], %{{.*}}) {reverse = false}
// VALUES:      "tile.store"(%[[S]], %states
// VALUES:      %[[P:.*]] = "tile.map"
// VALUES-DAG:    tensor.extract %[[MADE]]#0
// VALUES-DAG:    tensor.extract %[[X]]
// VALUES:      "tile.store"(%[[P]], %products
// VALUES-NEXT: "tile.store"(%[[MADE]]#1, %o
// VALUES:      %[[ENTERING:.*]] = "tile.map"
// VALUES-NEXT: ^bb0
// VALUES-NEXT:   tensor.extract %[[MADE]]#2
// VALUES:      "tile.dot_rescale"(%[[S]], %[[MADE]]#3, %[[ENTERING]], %[[K]]) {transpose_a = true, transpose_b = false}

// EQUAL: PASS
// EQUAL: PASS

// INVALID: error: attn-tile-chunks: 'tile.decay_channels' holds for exponentials of decays of keys' channels, or of values' with products
