// What the function of an attention must look like to be differentiated.
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd+bwd+jvp+bwd2}' --split-input-file --verify-diagnostics

!t = tensor<?x?x?x8xf32>
func.func @exchanged(%v: !t, %k: !t, %q: !t) -> !t {
  // expected-error @below {{attn-differentiate: takes a function that returns just one attention of its first three arguments}}
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @captures_first(%slopes: tensor<?xf32>, %q: !t, %k: !t, %v: !t) -> !t {
  // expected-error @below {{takes a function that returns just one attention of its first three arguments}}
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @reads_input(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %c0 = arith.constant 0 : index
      // expected-error @below {{an element of q, k or v is read: pass the tensor once more, as a further argument}}
      %gate = tensor.extract %q[%b, %h, %q_idx, %c0] : !t
      %p = arith.mulf %s, %gate : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @keys_twice(%q: !t, %k: !t, %v: !t, %q2: !t) -> !t {
  // expected-error @below {{takes a function that returns just one attention of its first three arguments}}
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q2, %k) : (!t, !t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s2: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @reads_second_keys(%q: !t, %k: !t, %v: !t, %q2: !t, %k2: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q2, %k2) : (!t, !t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s2: f32, %b: index, %h: index, %q_idx: index):
      %c0 = arith.constant 0 : index
      // expected-error @below {{an element of q, k or v is read: pass the tensor once more, as a further argument}}
      %gate = tensor.extract %k2[%b, %h, %q_idx, %c0] : !t
      %p = arith.mulf %s2, %gate : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
