// Two weights of v: one pass, in which both share the scores, the maximum and the sum; v is loaded once, as `attn.value` changes it.
// RUN: attn-opt %inputs/two-outputs.mlir -p attn-online-rewrite | FileCheck %s
// RUN: attn-opt %inputs/two-outputs.mlir -p 'attn-online-rewrite,attn-tile{block-q=16 block-kv=16},canonicalize,cse' | FileCheck %s --check-prefix=TILED
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile{block-q=16 block-kv=16},canonicalize,cse' | FileCheck %s --check-prefix=CHANGED

// CHECK:       %[[O:.*]]:2 = "attn.online"
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:[a-z0-9_]+]]: f32, {{.*}}, %max: f32, %sum: f32):
// CHECK:         %[[E:weight[a-z0-9_]*]] = math.exp
// CHECK:         %[[GATED:weight[a-z0-9_]*]] = arith.mulf %{{.*}}, %[[E]]
// CHECK-NEXT:    "attn.yield"(%max_new, %sum_new, %[[E]], %[[GATED]], %[[RESCALE:rescale[a-z0-9_]*]], %[[RESCALE]])
// CHECK-NOT:   "attn.step"
// CHECK:       "attn.finalize"
// CHECK:       accumulators = 2 : i64, outputs = ["lse"]}
// CHECK:       %[[O1:.*]] = "attn.output"(%[[O]]#0) {index = 1 : i64}
// CHECK:       return %[[O]]#0, %[[O1]], %[[O]]#1

// TILED:         scf.for
// TILED:           "tile.load"
// TILED:           "tile.dot"
// TILED:           %[[V:.*]] = "tile.load"
// TILED:           %{{.*}} = "tile.dot_rescale"({{.*}}, %[[V]])
// TILED-NEXT:      %{{.*}} = "tile.dot_rescale"({{.*}}, %[[V]])
// TILED:           scf.yield

!t = tensor<?x?x?x8xf32>
// CHANGED:         scf.for
// CHANGED:           %[[LOADED:.*]] = "tile.load"(%v,
// CHANGED-NEXT:      %[[V:.*]] = "tile.map"
// CHANGED:             tensor.extract %[[LOADED]]
// CHANGED-NEXT:        arith.negf
// CHANGED:           "tile.dot_add"({{.*}}, %[[V]])
// CHANGED-NEXT:      %{{.*}} = "tile.dot_add"({{.*}}, %[[V]])
func.func @changed(%q: !t, %k: !t, %v: !t) -> (!t, !t) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %kv_idx: index, %d: index):
      %y = arith.negf %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.term"(%v) {output = 1 : i64} : (!t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %p = math.exp %s : f32
      "attn.yield"(%s, %p) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  %o1 = "attn.output"(%o) {index = 1 : i64} : (!t) -> !t
  return %o, %o1 : !t, !t
}
