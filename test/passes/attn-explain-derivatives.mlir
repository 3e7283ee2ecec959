// The derivatives, in words: which rules were used, what is saved, formulas, cost, and that numbers confirm it.
// RUN: attn-opt %s --attn-explain | FileCheck %s

// CHECK:      cost: 1 pass over K; 2 numbers of state per row; 32 flops of matrix work for each present pair (1 product, 1 sum, 1 pass)
// CHECK:      backward
// CHECK-NEXT:   the weight of v by sum: needs no pass over keys: its logarithmic derivative is the same for all keys
// CHECK:        max: dropped: its adjoint is identically zero
// CHECK-NEXT:   saved by the forward pass for each row: max, sum; passes over pairs: 1
// CHECK-NEXT:   delta_o = <do, o>
// CHECK:        dv = sum over queries of (exp(s - max) / sum) do
// CHECK-NEXT:   dq = sum over keys of (exp(s - max) * (<do, v> / sum + {{[a-z]}})) k
// CHECK-NEXT:   dk = sum over queries of (exp(s - max) * (<do, v> / sum + {{[a-z]}})) q
// CHECK-NEXT:   cost: 80 flops of matrix work for each present pair (2 products, 3 sums, 1 pass)
// CHECK-SAME:   no S x S tensor
// CHECK-NEXT:   confirmed in float64 by differences of the row: {{[0-9]+}} random rows, largest relative error {{.*}}e-
// CHECK:      tangent
// CHECK-NEXT:   max_dot: dropped: nothing depends on it
// CHECK:        sum_dot = sum over keys of s_dot * exp(s - max)
// CHECK:        dot_o = sum over keys of
// CHECK:        confirmed in float64 by differences of the row
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
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
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
