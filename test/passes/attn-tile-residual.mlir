// What rounding took from o: the difference in f32, 2^11 times as large as it is for f16, stored beside o; products of rows add it.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile{block-q=16 block-kv=16},canonicalize,cse' --split-input-file | FileCheck %s

!t = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @mean(
// CHECK-SAME:    %[[O:[a-z0-9]+]]: memref<?x?x?x8xf16, {{[^>]*>>}}, %[[REST:[a-z0-9]+]]: memref<?x?x?x8xf16, {{[^>]*>>}})
// CHECK:         %[[FACTOR:.*]] = arith.constant 2.048000e+03 : f32
// CHECK:         "tile.store"(%{{.*}}, %[[O]],
// CHECK:         %[[TILE:.*]] = "tile.map"
// CHECK:           %[[X:.*]] = arith.divf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      %[[ROUNDED:.*]] = arith.truncf %[[X]] : f32 to f16
// CHECK-NEXT:      %[[BACK:.*]] = arith.extf %[[ROUNDED]] : f16 to f32
// CHECK-NEXT:      %[[LEFT:.*]] = arith.subf %[[X]], %[[BACK]] : f32
// CHECK-NEXT:      %[[SCALED:.*]] = arith.mulf %[[LEFT]], %[[FACTOR]] : f32
// CHECK-NEXT:      %[[LOW:.*]] = arith.truncf %[[SCALED]] : f32 to f16
// CHECK-NEXT:      "tile.yield"(%[[LOW]])
// CHECK:         "tile.store"(%[[TILE]], %[[REST]],
func.func @mean(%q: !t, %k: !t, %v: !t) -> (!t, !t) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %l = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %s, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  %r = "attn.residual"(%o) : (!t) -> !t
  return %o, %r : !t, !t
}

// -----

!t = tensor<?x?x?x8xbf16>

// For bf16 it is 2^8 times as large.
// CHECK-LABEL: func.func @row_dot(
// CHECK:         %[[FACTOR:.*]] = arith.constant 3.906250e-03 : f32
// CHECK-COUNT-3: "tile.load"{{.*}} -> tensor<16x8xbf16>
// CHECK:         "tile.map"
// CHECK:           %[[REST:.*]] = arith.mulf %{{.*}}, %[[FACTOR]] : f32
// CHECK-NEXT:      %[[O:.*]] = arith.addf %{{.*}}, %[[REST]] : f32
// CHECK-NEXT:      arith.mulf %{{.*}}, %[[O]] : f32
func.func @row_dot(%do: !t, %o: !t, %r: !t) -> tensor<?x?x?xf32> {
  %d = "attn.row_dot"(%do, %o, %r) : (!t, !t, !t) -> tensor<?x?x?xf32>
  return %d : tensor<?x?x?xf32>
}
