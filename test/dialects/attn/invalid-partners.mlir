// What `attn.query` and `attn.key` demand where they read another channel.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

!t = tensor<?x?x?x8xf32>
%q = ub.poison : !t
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.query' takes `partner` as half or interleaved, got "next"}}
  "attn.query"() ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%x) : (f32) -> ()
  }) {partner = "next", channels = 8 : i64} : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (!t, !t, !t) -> !t

// -----

!t = tensor<?x?x?x8xf32>
%q = ub.poison : !t
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.key' pairs an even number of `channels`, as i64, got 5 : i64}}
  "attn.key"() ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%x) : (f32) -> ()
  }) {partner = "half", channels = 5 : i64} : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (!t, !t, !t) -> !t

// -----

!t = tensor<?x?x?x8xf32>
%q = ub.poison : !t
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.key' pairs 10 channels, more than there are in tensor<?x?x?x8xf32>}}
  "attn.key"() ({
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%x) : (f32) -> ()
  }) {partner = "half", channels = 10 : i64} : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (!t, !t, !t) -> !t

// -----

!t = tensor<?x?x?x8xf32>
%q = ub.poison : !t
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.query' takes (x, partner, b, h, q_idx, d), got (score, index, index, index, index)}}
  "attn.query"() ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%x) : (f32) -> ()
  }) {partner = "interleaved", channels = 2 : i64} : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (!t, !t, !t) -> !t

// -----

// expected-error @below {{'attn.query' belongs inside attn.attention or attn.online}}
"attn.query"() ({
^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %d: index):
  "attn.yield"(%x) : (f32) -> ()
}) {partner = "half", channels = 8 : i64} : () -> ()
