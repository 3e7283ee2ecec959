// The delta rule has the same chunked form as the rest: the pieces stay, the factors are the same, and no system is to be seen yet.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-chunk-rewrite{chunk=16}' | FileCheck %s

// CHECK:      "attn.chunk"(%{{.*}}) ({
// A scale of q stays with q: e and q have their factors from the same pieces.
// CHECK-NEXT:   "attn.query"() ({
// CHECK:        "attn.erase"(%{{.*}}) ({
// CHECK:        }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
// CHECK:        "attn.output_decay"() ({
// CHECK-NEXT:   ^bb0(%[[PREFIX:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT:     %[[LEAVE:.*]] = math.exp %[[PREFIX]] : f32
// CHECK-NEXT:     "attn.yield"(%[[LEAVE]])
// CHECK:      chunk = 16 : i64

// Chunks of one position, several with a rest, more than there are positions; heads, channels, both directions and two writers.
// RUN: attn-run %inputs/linear/kda.mlir %inputs/linear/delta-backward.mlir --q-len 11 -p 'attn-simplify,attn-chunk-rewrite{chunk=1},canonicalize,cse' | FileCheck %s --check-prefix=ONE
// RUN: attn-run %inputs/linear/gated-delta.mlir %inputs/linear/kda.mlir %inputs/linear/delta-backward.mlir %inputs/linear/second-writer.mlir --q-len 21 --after-each -p 'attn-chunk-rewrite{chunk=16},attn-tile-chunks,canonicalize,cse' | FileCheck %s --check-prefix=SAME
// SAME-COUNT-4: PASS
// ONE-COUNT-2: PASS
