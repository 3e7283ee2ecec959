// What changes a tensor before an attention needs a function around both.
// RUN: attn-opt %s -p 'attn-apply-mods' --verify-diagnostics

!t = tensor<?x?x?x8xf32>
%q = ub.poison : !t
// expected-error @below {{attn-apply-mods: 'attn.attention' must stand directly in a func.func}}
%o = "attn.attention"(%q, %q, %q) ({
  "attn.query"() ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%y) : (f32) -> ()
  }) {partner = "half", channels = 8 : i64} : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (!t, !t, !t) -> !t
