// RUN: attn-opt %s -p 'attn-pack-heads' --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %q, %q) ({
    // expected-error @below {{attn-pack-heads: heads are packed for q, k and v alone, not with 'attn.term'}}
    "attn.term"(%q) {output = 0 : i64} : (tensor<?x?x?x8xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
