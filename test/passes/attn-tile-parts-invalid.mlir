// RUN: attn-opt %s --verify-diagnostics -p 'attn-tile{whole=true}'

func.func @parts(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %parts: index, %keys: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.parts' are for tensors that are not packed, without `whole`}}
  %acc = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.parts"(%parts, %keys) : (index, index) -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %acc : tensor<?x?x?x8xf32>
}
