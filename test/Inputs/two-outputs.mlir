// Softmax with and without a gate of its own for each pair: two weights, both of v.
!q = tensor<?x?x?x64xf16>
!row = tensor<?x?x?xf32>
func.func @attention(%q: !q, %k: !q, %v: !q) -> (!q, !q, !row) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.term"(%v) {output = 1 : i64} : (!q) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %max = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %below = arith.subf %s, %max : f32
      %e = math.exp %below : f32
      %sum = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %sum : f32
      %gate = math.tanh %s : f32
      %p1 = arith.mulf %p, %gate : f32
      %log = math.log %sum : f32
      %lse = arith.addf %max, %log : f32
      "attn.yield"(%p, %p1, %lse) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (!q, !q, !q) -> (!q, !row)
  %o1 = "attn.output"(%o) {index = 1 : i64} : (!q) -> !q
  return %o, %o1, %lse : !q, !q, !row
}
