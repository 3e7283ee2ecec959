// (s - mean)^3 has rank 4: two passes by default, one pass with four accumulators on request.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s --check-prefix=PASSES
// RUN: attn-opt %s -p 'attn-online-rewrite{max-accumulators=4}' | FileCheck %s --check-prefix=RANK

// PASSES-COUNT-2: "attn.step"
// PASSES-NOT:     "attn.merge"
// PASSES:         accumulators = 1 : i64
// RANK:           "attn.step"
// RANK-NOT:       "attn.step"
// RANK:           "attn.merge"
// RANK:           accumulators = 4 : i64
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32 loc("n")
      %a = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32 loc("a")
      %mean = arith.divf %a, %n : f32
      %d = arith.subf %s, %mean : f32
      %dd = arith.mulf %d, %d : f32
      %p = arith.mulf %dd, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
