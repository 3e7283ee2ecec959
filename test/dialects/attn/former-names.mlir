// Names that saved programs may still have, and what is said of them.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{unregistered operation 'attn.carry' found in dialect ('attn') that does not allow unknown operations; it is called 'attn.chunk_decay' now}}
"attn.carry"() : () -> ()

// -----

// expected-error @below {{it is called 'attn.residual' now}}
"attn.remainder"() : () -> ()

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>) -> tensor<?x?x?x16xf32> {
  // expected-error @below {{'attn.linear_attention' has no attribute `exact`: it is called `compensated` now}}
  %o = "attn.linear_attention"(%q, %q, %q) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], exact, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?x16xf32>
  return %o : tensor<?x?x?x16xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.linear_attention' takes `outputs` that exist: 'own' is called 'diagonal' now}}
  %o, %r0, %r1 = "attn.linear_attention"(%q, %q, %q, %q) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products", "own"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 1>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
  return
}
