// What further products, terms and outputs of an attention demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.score' yields one or more scores, got none}}
  "attn.score"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"() : () -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %q, %q) ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  // expected-error @below {{'attn.row' takes (2 scores, b, h, q_idx), got (score, index, index, index)}}
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %q, %q) ({
  "attn.term"(%q) {output = 0} : (tensor<?x?x?x64xf32>) -> ()
  // expected-error @below {{'attn.row' yields 2 weights and 0 row outputs, got 1 values}}
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x?xf32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.term' sums [B, Hkv, Skv, D] with a static D, got tensor<?x?x?x?xf32>}}
  "attn.term"(%v) {output = 1} : (tensor<?x?x?x?xf32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.term' adds to an output numbered from 0, got -1}}
  "attn.term"(%q) {output = -1} : (tensor<?x?x?x64xf32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' numbers its outputs without gaps, got terms of outputs 1, 3}}
%o = "attn.attention"(%q, %q, %q) ({
  "attn.term"(%q) {output = 1} : (tensor<?x?x?x64xf32>) -> ()
  "attn.term"(%q) {output = 3} : (tensor<?x?x?x64xf32>) -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x32xf32>
// expected-error @below {{'attn.attention' sums one head dimension and element type into output 0, got tensor<?x?x?x32xf32>}}
%o = "attn.attention"(%q, %q, %q) ({
  "attn.term"(%v) {output = 0} : (tensor<?x?x?x32xf32>) -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s, %s) : (f32, f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.output' takes the result o of an attn.attention or attn.online}}
%o = "attn.output"(%q) {index = 1} : (tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

!t = tensor<?x?x?x64xf32>
func.func @outputs(%q: !t) {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.term"(%q) {output = 1} : (!t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  // expected-error @below {{'attn.output' takes an output numbered from 1, got 0}}
  "attn.output"(%o) {index = 0} : (!t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @outputs(%q: !t) {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.term"(%q) {output = 1} : (!t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  // expected-error @below {{'attn.output' finds no attn.term for output 2}}
  "attn.output"(%o) {index = 2} : (!t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @outputs(%q: !t) {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.term"(%q) {output = 1} : (!t) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  // expected-error @below {{'attn.output' has the head dimension and element type of its terms, got tensor<?x?x?x32xf32>}}
  "attn.output"(%o) {index = 1} : (!t) -> tensor<?x?x?x32xf32>
  return
}

// -----

%q = ub.poison : tensor<?x?x?x64xf16>
// expected-error @below {{'attn.residual' takes the result o of an attn.attention or attn.online}}
%r = "attn.residual"(%q) : (tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16>

// -----

!t = tensor<?x?x?x64xf16>
!w = tensor<?x?x?x32xf16>
func.func @residual_of_an_output(%q: !t, %w: !w) {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.term"(%w) {output = 1} : (!w) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  // expected-error @below {{'attn.residual' is that of an output numbered from 1 whose terms have o's type, got 1 : i64}}
  "attn.residual"(%o) {index = 1 : i64} : (!t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @residual(%q: !t) {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  // expected-error @below {{'attn.residual' makes a tensor of o's type, of f16 or bf16, got tensor<?x?x?x64xf32> for tensor<?x?x?x64xf32>}}
  "attn.residual"(%o) : (!t) -> !t
  return
}
