// What the scalar ops inside pieces demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    // expected-error @below {{'attn.reduce' reduces by sum, max, min, got 'mean'}}
    %m = "attn.reduce"(%s) {kind = "mean"} : (f32) -> f32
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
    // expected-error @below {{'attn.reduce' reduces f32 or f64, got index}}
    %m = "attn.reduce"(%i) {kind = "max"} : (index) -> index
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
    // expected-error @below {{'attn.reduce' returns its operand's type f32, got f64}}
    %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f64
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%x = ub.poison : f32
// expected-error @below {{'attn.reduce' belongs inside attn.row or attn.step}}
%m = "attn.reduce"(%x) {kind = "max"} : (f32) -> f32

// -----

%x = ub.poison : f32
// expected-error @below {{'attn.detach' returns its operand's type f32, got f64}}
%m = "attn.detach"(%x) : (f32) -> f64

// -----

%i = ub.poison : index
// expected-error @below {{'attn.slope' takes f32 or f64, got index}}
%m = "attn.slope"(%i, %i) : (index, index) -> index

// -----

%x = ub.poison : f32
%c = ub.poison : f64
// expected-error @below {{'attn.slope' takes and returns f32, got f64 and f32}}
%m = "attn.slope"(%x, %c) : (f32, f64) -> f32

// -----

%t = ub.poison : tensor<?xf32>
%i = ub.poison : index
// expected-error @below {{'attn.range' reads a ranked tensor or memref of integers, got tensor<?xf32>}}
%min, %max = "attn.range"(%t, %i, %i) : (tensor<?xf32>, index, index) -> (index, index)

// -----

%t = ub.poison : tensor<?xi32>
%i = ub.poison : index
// expected-error @below {{'attn.range' takes 1 begins and 1 ends, got 1 indices}}
%min, %max = "attn.range"(%t, %i) : (tensor<?xi32>, index) -> (index, index)

// -----

%t = ub.poison : tensor<?xi32>
%i = ub.poison : i32
// expected-error @below {{'attn.range' takes its box as index values}}
%min, %max = "attn.range"(%t, %i, %i) : (tensor<?xi32>, i32, i32) -> (index, index)

// -----

%t = ub.poison : tensor<?xi32>
%i = ub.poison : index
// expected-error @below {{'attn.range' returns two index values, got i32 and index}}
%min, %max = "attn.range"(%t, %i, %i) : (tensor<?xi32>, index, index) -> (i32, index)

// -----

%n = ub.poison : index
%m = ub.poison : i32
// expected-error @below {{'attn.kept' takes index values, got i32}}
%kept = "attn.kept"(%n, %n, %n, %n, %n, %n, %n, %m) : (index, index, index, index, index, index, index, i32) -> i1

// -----

%n = ub.poison : index
// expected-error @below {{'attn.kept' returns i1, got index}}
%kept = "attn.kept"(%n, %n, %n, %n, %n, %n, %n, %n) : (index, index, index, index, index, index, index, index) -> index
