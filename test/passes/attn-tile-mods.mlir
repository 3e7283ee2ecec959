// Mods of q, k and v are maps on the loaded tiles, before the products.
// RUN: attn-opt %inputs/query-key-value-mods.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK:       %[[Q:.*]] = "tile.load"(%q
// CHECK:       %[[QUERY:.*]] = "tile.map"
// CHECK:         tensor.extract %[[Q]]
// CHECK:       -> tensor<64x64xf32>
// CHECK:       scf.for
// CHECK:         %[[K:.*]] = "tile.load"(%k
// CHECK:         %[[KEY:.*]] = "tile.map"
// CHECK:           tensor.extract %[[K]]
// CHECK:         "tile.dot"(%[[QUERY]], %[[KEY]])
// CHECK:         %[[V:.*]] = "tile.load"(%v
// CHECK:         %[[VALUE:.*]] = "tile.map"
// CHECK:           tensor.extract %[[V]]
// CHECK:         "tile.dot_{{.*}}%[[VALUE]]) {transpose_b = false}
