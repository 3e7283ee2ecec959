// What the pieces of `attn.attention` demand of their place, block and terminator.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'attn.score' belongs inside attn.attention or attn.online}}
"attn.score"() ({
^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
  "attn.yield"(%s) : (f32) -> ()
}) : () -> ()

// -----

// expected-error @below {{'attn.row' belongs inside attn.attention}}
"attn.row"() ({
^bb0(%s: f32, %b: index, %h: index, %i: index):
  "attn.yield"(%s) : (f32) -> ()
}) : () -> ()

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.score' has exactly one block}}
  "attn.score"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
    cf.br ^bb1
  ^bb1:
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.mask' takes (b, h, q_idx, kv_idx), got (index, index, index)}}
  "attn.mask"() ({
  ^bb0(%b: index, %h: index, %i: index):
    "attn.yield"(%i) : (index) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  // expected-error @below {{'attn.row' ends in 'attn.yield'}}
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "tile.yield"(%s) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  // expected-error @below {{'attn.row' yields scores (f32 or f64), got (index)}}
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%i) : (index) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  // expected-error @below {{'attn.mask' yields (i1), got (index)}}
  "attn.mask"() ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%j) : (index) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  // expected-error @below {{'attn.row' yields p and 0 row outputs, got 2 values}}
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s, %s) : (f32, f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
