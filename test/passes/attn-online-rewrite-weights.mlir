// Two weights of a row whose reduction moves inside a relu: both are summed in a second pass, where it is final.
// In the second program the weights separate; relu(s) v is shared, though the terms come in another order.
// RUN: attn-opt %s -p 'attn-online-rewrite' --split-input-file | FileCheck %s
// RUN: attn-opt %s --split-input-file --attn-explain | FileCheck %s --check-prefix=EXPLAIN

// CHECK-COUNT-2: "attn.step"
// CHECK:         accumulators = 2 : i64, outputs = [], sources = array<i64: 0, 1>
// CHECK-COUNT-1: "attn.step"
// CHECK-NOT:     "attn.step"
// CHECK:         accumulators = 3 : i64, outputs = [], sources = array<i64: 0, 1, 0>

// EXPLAIN:       p = max(s - m + 1, 0)  (of v, in o)
// EXPLAIN:       p1 = max(s - m + 1, 0) * s1  (of v1, in o1)
// EXPLAIN:       v in o: one more pass, in pass 2; max(s - m + 1, 0) does not separate s from the reductions
// EXPLAIN:       v1 in o1: one more pass
// EXPLAIN:       v in o: independent, accumulated as it is; applied at the end: 1 / a
// EXPLAIN:       v1 in o1: independent
// EXPLAIN:       v in o1: moments, rank 2, s1 * max(s, 0), max(s, 0); applied at the end: 1 / a, -1
// EXPLAIN:       acc0' = acc0 + sum max(s, 0) v
// EXPLAIN:       acc1' = acc1 + sum max(s, 0) v1
// EXPLAIN:       acc2' = acc2 + sum (s1 * max(s, 0)) v
func.func @two_kv_passes(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %w: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q, %w) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.term"(%w) {output = 1 : i64} : (tensor<?x?x?x8xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s1: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %d1 = arith.addf %d, %one : f32
      %p = arith.maximumf %d1, %zero : f32
      %p1 = arith.mulf %p, %s1 : f32
      "attn.yield"(%p, %p1) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @shared(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %w: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q, %w) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.term"(%w) {output = 1 : i64} : (tensor<?x?x?x8xf32>) -> ()
    "attn.term"(%v) {output = 1 : i64} : (tensor<?x?x?x8xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s1: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %e = arith.maximumf %s, %zero : f32
      %a = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("a")
      %p = arith.divf %e, %a : f32
      %d = arith.subf %s1, %a : f32
      %p1 = arith.mulf %p, %d : f32
      "attn.yield"(%p, %p, %p1) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
