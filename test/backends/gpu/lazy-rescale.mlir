// A running maximum is kept while it would grow little, where nothing that is stored depends on it.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile,canonicalize,cse,gpu-lazy-rescale' | FileCheck %s
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile,canonicalize,cse,gpu-lazy-rescale{slack=3 scale-log2=12}' | FileCheck %s --check-prefix=LIFT
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-fit-range,nvidia-numerics,attn-tile,canonicalize,cse,gpu-lazy-rescale' | FileCheck %s --check-prefix=LEFT
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-fit-range,nvidia-numerics,attn-tile,canonicalize,cse,gpu-lazy-rescale{narrow=5}' | FileCheck %s --check-prefix=NARROW

!t = tensor<?x?x?x64xf32>
!r = tensor<?x?x?xf32>

// CHECK-LABEL: func.func @softmax(
// CHECK:         %[[NEW:.*]] = arith.maximumf %[[OLD:.*]], %{{.*}} : f32
// CHECK:         %[[GROWTH:.*]] = arith.subf %[[NEW]], %[[OLD]]
// CHECK:         %[[NEAR:.*]] = arith.cmpf ole, %[[GROWTH]],
// CHECK:         %[[KEPT:.*]] = arith.select %[[NEAR]], %[[OLD]], %[[NEW]]
// CHECK:         %[[DOWN:.*]] = arith.subf %[[OLD]], %[[KEPT]]
// CHECK:         math.exp %[[DOWN]]
// LIFT-LABEL: func.func @softmax(
// LIFT-SAME:    tile.scale_log2 = 12 : i64
// LIFT:         %[[LOWER:.*]] = arith.constant 8.31776{{[0-9]*}} : f32
// LIFT:         %[[REFERENCE:.*]] = arith.subf %{{.*}}, %[[LOWER]]
// LIFT:         arith.maximumf %{{.*}}, %[[REFERENCE]]
// LIFT:         arith.constant 2.0794{{[0-9]*}} : f32
func.func @softmax(%q: !t, %k: !t, %v: !t) -> (!t, !r) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (!t, !t, !t) -> (!t, !r)
  return %o, %lse : !t, !r
}

// Here the maximum itself is stored.
// CHECK-LABEL: func.func @with_maximum(
// CHECK-NOT:     arith.cmpf ole
func.func @with_maximum(%q: !t, %k: !t, %v: !t) -> (!t, !r) {
  %o, %largest = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p, %m) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["largest"]} : (!t, !t, !t) -> (!t, !r)
  return %o, %largest : !t, !r
}

// Weights that are divided by 1 + their sum are not free to scale.
// CHECK-LABEL: func.func @shifted(
// CHECK-NOT:     arith.cmpf ole
func.func @shifted(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %more = arith.addf %l, %one : f32
      %p = arith.divf %e, %more : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// Weights of 8 bits have no room above the maximum: with some, what is taken for it is 5 log 2 more.
// LEFT-LABEL:   func.func @eight_bit(
// LEFT-NOT:       arith.cmpf ole
// NARROW-LABEL: func.func @eight_bit(
// NARROW-NOT:     tile.scale_log2
// NARROW:         %[[ABOVE:.*]] = arith.subf %{{.*}}, %{{.*}} : f32
// NARROW-NEXT:    %[[NEW:.*]] = arith.maximumf %[[OLD:.*]], %[[ABOVE]] {gpu.free} : f32
// NARROW:         %[[GROWTH:.*]] = arith.subf %[[NEW]], %[[OLD]]
// NARROW-NEXT:    arith.cmpf ole, %[[GROWTH]],
!e = tensor<?x?x?x64xf8E4M3FN>
!b = tensor<?x?x?x64xbf16>
func.func @eight_bit(%q: !e, %k: !e, %v: !e) -> !b {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!e, !e, !e) -> !b
  return %o : !b
}
