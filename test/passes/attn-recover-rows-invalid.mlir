// Online functions that are no function of the whole row, or whose end cannot be given to each weight.
// RUN: attn-opt %s --split-input-file --verify-diagnostics -p 'attn-recover-rows'

// The sum of weighted values is not rescaled when the maximum moves.
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %lowest = arith.constant -3.40282347E+38 : f32
      "attn.yield"(%lowest) : (f32) -> ()
    }) : () -> ()
    // expected-error @below {{the online function is not independent of how keys are cut into blocks: o is }}
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %m: f32):
      %one = arith.constant 1.0 : f32
      %block = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %m_new = arith.maximumf %m, %block : f32
      %d = arith.subf %s, %m_new : f32
      %e = math.exp %d : f32
      "attn.yield"(%m_new, %e, %one) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index, %m: f32):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      // expected-error @below {{the output is not linear in the sum of weighted values, so that it is no sum of weighted values itself}}
      %squared = arith.mulf %acc, %acc : f32
      "attn.yield"(%squared) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %row = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    // expected-error @below {{a row output depends on the sum of weighted values}}
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc, %acc) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["row"], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %row : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
