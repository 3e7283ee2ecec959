// On the CPU, query rows lie along lanes, keys and values of f32 stay in memory, and maps work in place.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=32 block-kv=16},canonicalize,cse,tile-schedule{target=cpu}' | FileCheck %s
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-online-rewrite,attn-tile{block-q=32 block-kv=16},tile-schedule{target=cpu}' | FileCheck %s --check-prefix=HALF
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-online-rewrite,attn-tile{block-q=1 block-kv=16},tile-schedule{target=cpu}' | FileCheck %s --check-prefix=SINGLE

// 32 rows: q and the accumulator with 64 columns, scores with 16, the output with 64 again.
// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    tile.buffers = [2048, 2048, 2048], {{.*}} tile.target = "cpu"
// CHECK:       "tile.load"(%q, {{.*}} {buffer = [0], layout = ["lanes"]}
// CHECK:       "tile.fill"({{.*}} {accumulator = 0 : i64, buffer = [1], layout = ["lanes"]}
// CHECK:       "tile.load"(%k, {{.*}} {buffer = [-1], layout = ["memory"]}
// CHECK-NEXT:  "tile.dot"({{.*}} {buffer = [2], layout = ["lanes"], transpose_b = true}
// CHECK:       {buffer = [2], layout = ["lanes"], reductions = ["max"]
// CHECK:       {buffer = [2], layout = ["lanes"], reductions = ["sum"]
// CHECK:       "tile.load"(%v, {{.*}} {buffer = [-1], layout = ["memory"]}
// CHECK-NEXT:  "tile.dot_rescale"({{.*}} {buffer = [1], layout = ["lanes"]

// HALF:        "tile.load"(%k, {{.*}} layout = ["rows"]
// HALF:        "tile.load"(%v, {{.*}} layout = ["rows"]

// A single query reads those of 16 bits in memory, too.
// SINGLE:      "tile.load"(%k, {{.*}} layout = ["memory"]
// SINGLE:      "tile.load"(%v, {{.*}} layout = ["memory"]
