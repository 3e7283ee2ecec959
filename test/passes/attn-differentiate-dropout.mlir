// With dropout, 1 / (1 - p) joins the exponential's argument, too, since it is positive: then a pair needs no product for it.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse,attn-choose-kept' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK:         %[[DELTA:[a-z0-9_]+]] = "attn.row_dot"(%do, %o)
// CHECK:         "attn.elements"
// CHECK-DAG:       %[[SUM:[a-z0-9_]+]] = math.log %sum
// CHECK-DAG:       %[[SCALE:[a-z0-9_]+]] = arith.maximumf %arg6, %{{.*}} : f32
// CHECK-DAG:       %[[LOG:[a-z0-9_]+]] = math.log %[[SCALE]]
// CHECK-DAG:       %[[SHIFT:[a-z0-9_]+]] = arith.subf %[[SUM]], %[[LOG]]
// CHECK-DAG:       %[[LSE:[a-z0-9_]+]] = arith.addf %max, %[[SHIFT]]
// CHECK-DAG:       %[[SCALED:[a-z0-9_]+]] = arith.divf %{{.*}}, %[[SCALE]]
// CHECK:           "attn.yield"(%[[LSE]], %[[SCALED]])
// CHECK:         "attn.pair"() ({
// CHECK:           %[[P:[a-z0-9_]+]] = math.exp
// CHECK:           %[[KEPT:[a-z0-9_]+]] = "attn.kept"
// CHECK:           %[[DROPPED:[a-z0-9_]+]] = arith.select %[[KEPT]], %[[P]], %cst
// CHECK:           %[[DP:[a-z0-9_]+]] = arith.select %[[KEPT]], %do_v, %cst
// CHECK:           %[[CENTRED:[a-z0-9_]+]] = arith.subf %[[DP]], %{{.*}}
// CHECK-NEXT:      %[[DS:[a-z0-9_]+]] = arith.mulf %[[P]], %[[CENTRED]]
// CHECK-NEXT:      "attn.yield"(%[[DROPPED]], %[[DS]])
func.func @attention(%q: tensor<?x?x?x8xf16>, %k: tensor<?x?x?x8xf16>, %v: tensor<?x?x?x8xf16>, %seed: index, %offset: index, %drop: index,
                     %dropout_scale: f32) -> tensor<?x?x?x8xf16> {
  %c1 = arith.constant 1 : index
  %heads = tensor.dim %q, %c1 : tensor<?x?x?x8xf16>
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %is_kept = "attn.kept"(%seed, %offset, %drop, %heads, %b, %h, %q_idx, %kv_idx)
          : (index, index, index, index, index, index, index, index) -> i1
      %kept = arith.select %is_kept, %one, %zero : f32
      "attn.yield"(%x, %kept) : (f32, f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %kept: f32, %b: index, %h: index, %q_idx: index):
      %least = arith.constant 1.17549435E-38 : f32
      %scale = arith.maximumf %dropout_scale, %least : f32
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %pk = arith.mulf %p, %kept : f32
      %w = arith.mulf %pk, %scale : f32
      "attn.yield"(%w) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16>
  return %o : tensor<?x?x?x8xf16>
}
