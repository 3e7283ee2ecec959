// RUN: attn-opt %s --verify-diagnostics -p 'attn-online-rewrite,attn-fit-range'

func.func @attention(%q: tensor<?x?x?x64xf8E4M3FN>, %k: tensor<?x?x?x64xf8E4M3FN>, %v: tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      // expected-error @below {{weights of this row are rounded to f8E4M3FN, whose largest number is 448, but nothing bounds them: they lie between 0 and inf}}
      %e = math.exp %s : f32
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}
