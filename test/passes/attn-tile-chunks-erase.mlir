// What erasing writes is the solution of a system; then the state and o take it as they take v.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile-chunks,canonicalize,cse' | FileCheck %s

// CHECK:      scf.for {{.*}} iter_args(%[[STATE:.*]] = %{{.*}}) -> (tensor<16x8xf32>)
// CHECK:        %[[K:.*]] = "tile.load"(%k,
// beta is a factor of rows: the erase key is the tile of k.
// CHECK:        %[[PASSED:.*]] = "tile.dot"(%[[K]], %[[STATE]])
// CHECK:        %[[PRODUCTS:.*]] = "tile.dot"(%[[K]], %[[K]]) {transpose_b = true}
// A position does not read what it writes itself, nor what the later ones write.
// CHECK:        %[[SYSTEM:.*]] = "tile.map"
// CHECK:          arith.cmpi sgt
// CHECK:        %[[VALUES:.*]] = "tile.solve_unit"(%[[SYSTEM]], %{{.*}}) {upper = false} : (tensor<16x16xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
// CHECK:        "tile.dot_rescale"({{.*}}, %[[VALUES]]) {transpose_b = false}
// CHECK-NEXT:   "tile.store"({{.*}}, %o,

// Towards earlier positions the triangle is an upper one, and the writer that is not erased has its products, too.
// RUN: attn-opt %inputs/linear/delta-backward.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile-chunks,canonicalize,cse' | FileCheck %s --check-prefix=BACK

// BACK:         %[[RIGHT:.*]] = "tile.dot_add"
// BACK:         %[[X:.*]] = "tile.solve_unit"(%{{.*}}, %[[RIGHT]]) {upper = true}
