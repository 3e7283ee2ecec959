// RUN: attn-opt %s --split-input-file --verify-diagnostics -p 'attn-online-rewrite'

func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %bad = "attn.attention"(%q, %k, %v) ({
    // expected-error @below {{the row has no online form: a row output varies along the row; reduce it first}}
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %x = arith.addf %s, %one : f32
      "attn.yield"(%s, %x) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["bad"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %bad : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    // expected-error @below {{nearly all random rows give no usable number}}
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %n = arith.mulf %s, %s : f32
      %one = arith.constant 1.0 : f32
      %m = arith.addf %n, %one : f32
      %x = arith.negf %m : f32
      %p = math.sqrt %x : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    // expected-error @below {{'math.acosh' of a value that varies along the row is not understood}}
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %p = math.acosh %s : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
