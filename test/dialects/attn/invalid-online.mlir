// How the pieces of `attn.online` must agree on states, accumulators and passes.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.online' needs at least one accumulator, got 0}}
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 0} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.step' takes (s, b, h, q_idx) and 1 states, got 6 arguments}}
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32, %l: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.step' yields 3 values (1 states; weights and scales in the last pass), got 1}}
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.finalize' takes 1 accumulators, (b, h, q_idx) and 1 states, got 6 arguments}}
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32, %l: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.finalize' yields o and 0 row outputs, got 2 values}}
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m, %m) : (f32, f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.finalize' takes (accumulators..., b, h, q_idx, states...), got (score, index, index, index, score)}}
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1000000000000} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.merge' merges the states of one pass; this op has several}}
  "attn.merge"() ({
  ^bb0(%m0: f32, %m1: f32):
    "attn.yield"(%m0, %m0, %m0) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.merge' takes twice 1 states, got 3 arguments}}
  "attn.merge"() ({
  ^bb0(%m0: f32, %m1: f32, %m2: f32):
    "attn.yield"(%m0, %m0, %m0) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %k, %v) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.merge' yields 1 states and 2 scales, got 2 values}}
  "attn.merge"() ({
  ^bb0(%m0: f32, %m1: f32):
    "attn.yield"(%m0, %m0) : (f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.online' takes `sources` as array<i64>}}
%o = "attn.online"(%q, %q, %q) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1, sources = [0]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.online' has one source for each of 1 accumulators, got 2}}
%o = "attn.online"(%q, %q, %q) ({
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1, sources = array<i64: 0, 0>} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.online' sums v (source 0) or its terms (1 to 1)}}
%o = "attn.online"(%q, %q, %q) ({
  "attn.term"(%q) {output = 0} : (tensor<?x?x?x64xf32>) -> ()
  "attn.init"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %m = arith.constant 0.0 : f32
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
  "attn.step"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%s, %s, %s) : (f32, f32, f32) -> ()
  }) : () -> ()
  "attn.finalize"() ({
  ^bb0(%a0: f32, %b: index, %h: index, %i: index, %m: f32):
    "attn.yield"(%m) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], accumulators = 1, sources = array<i64: 2>} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
