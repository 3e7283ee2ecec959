// Accumulators are updated in place, so each has a buffer of its own; their numbers keep CSE from making one fill of theirs.
// RUN: attn-opt %inputs/softmax-minus-max.mlir -p 'attn-online-rewrite,attn-tile{block-q=32 block-kv=16},canonicalize,cse,tile-schedule{target=cpu}' | FileCheck %s

// CHECK:     %[[A:.*]] = "tile.fill"({{.*}} {accumulator = 0 : i64, buffer = [1], layout = ["lanes"]} : (f32) -> tensor<32x64xf32>
// CHECK:     %[[B:.*]] = "tile.fill"({{.*}} {accumulator = 1 : i64, buffer = [2], layout = ["lanes"]} : (f32) -> tensor<32x64xf32>
// CHECK:     scf.for {{.*}} = %[[A]], {{.*}} = %[[B]])
// CHECK-DAG: "tile.dot_rescale"({{.*}} {buffer = [1], layout = ["lanes"], transpose_b = false}
// CHECK-DAG: "tile.dot_add"({{.*}} {buffer = [2], layout = ["lanes"], transpose_b = false}
