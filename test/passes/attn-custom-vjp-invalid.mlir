// Functions that do not fit the online attention, and gradients that they do not give.
// RUN: attn-opt %s --split-input-file --verify-diagnostics -p 'attn-custom-vjp{wrt=q+gain}'

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{@attention_weight and @attention_dscore are not in the module}}
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
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
// expected-error @below {{a function of scalars beside an online attention has one block and the type (f32, index,}}
func.func @attention_weight(%s: f32, %kv_idx: index, %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %s : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32,
    %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %dp : f32
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{no derivative: 'gain' is no floating tensor among the arguments, which are q, k, v}}
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
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
func.func @attention_weight(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %s : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32,
    %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %dp : f32
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %gain: tensor<?xf32> loc("gain")) -> tensor<?x?x?x8xf32> {
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
      // expected-error @below {{no derivative: the row reads 'gain', and a backward pass that is written gives the gradients of scores only}}
      %g = tensor.extract %gain[%h] : tensor<?xf32>
      %scaled = arith.mulf %acc, %g : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
func.func @attention_weight(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %gain: tensor<?xf32>) -> f32 {
  return %s : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32,
    %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %gain: tensor<?xf32>) -> f32 {
  return %dp : f32
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{takes a function that returns just one attention of its first three arguments}}
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
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %q : tensor<?x?x?x8xf32>
}
func.func @attention_weight(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %s : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32,
    %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> f32 {
  return %dp : f32
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @attention(%q: !t, %k: !t, %v: !t, %q2: !t, %k2: !t) -> !t {
  %o = "attn.online"(%q, %k, %v) ({
    // expected-error @below {{attn-custom-vjp: what is written is the gradient of one score, not of several products}}
    "attn.product"(%q2, %k2) : (!t, !t) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %s2: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (!t, !t, !t) -> !t
  return %o : !t
}
func.func @attention_weight(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %q: !t, %k: !t, %v: !t, %q2: !t, %k2: !t) -> f32 {
  return %s : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32, %q: !t, %k: !t, %v: !t, %q2: !t, %k2: !t) -> f32 {
  return %dp : f32
}
