// What the ops demand that consume the weights of pairs and elements.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.query_sum' takes `weights` as array<i64>}}
  "attn.query_sum"(%w, %q) {weights = [0]} : (none, !t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.query_sum' has one weight a term, got 2 for 1 terms}}
  "attn.query_sum"(%w, %q) {weights = array<i64: 0, 0>} : (none, !t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.key_sum' has one weight a term, got 0 for 0 terms}}
  "attn.key_sum"(%w) {weights = array<i64>} : (none) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.key_sum' takes weights numbered below 1, got 1}}
  "attn.key_sum"(%w, %q) {weights = array<i64: 1>} : (none, !t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.key_sum' takes weights numbered below 1, got 0, -1}}
  "attn.key_sum"(%w, %q, %q) {weights = array<i64: 0, -1>} : (none, !t, !t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.key_sum' sums tensors of rank 4 with a static head dimension, got tensor<?x?x?xf32>}}
  "attn.key_sum"(%w, %row) {weights = array<i64: 0>} : (none, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.query_sum' makes a tensor of f32 or f64 with its terms' head dimension, got tensor<?x?x?x64xf16>}}
  "attn.query_sum"(%w, %q) {weights = array<i64: 0>} : (none, !t) -> tensor<?x?x?x64xf16>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %slopes: tensor<?xf32>) {
  %w = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = arith.constant 1.0 : f32
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  // expected-error @below {{'attn.query_sum' takes the weights of attn.pairs}}
  "attn.query_sum"(%w, %q) {weights = array<i64: 0>} : (none, !t) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.scatter' takes weights numbered below 1, got 3}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 3} : (none, tensor<?xf32>) -> tensor<?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.scatter' makes a tensor of f32 or f64 shaped like tensor<?xf32>, got tensor<?x?xf32>}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?x?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.scatter' along diagonals of pairs takes a tensor of keys and makes tensor<?x?x?xf32> or f64, got tensor<?x?xf32>}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0, diagonals} : (none, tensor<?xf32>) -> tensor<?x?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.scatter' index takes 4 positions of type index}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.scatter' index yields 1 values of type index}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%h, %i) : (index, index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %slopes: tensor<?xf32>) {
  %w = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = arith.constant 1.0 : f32
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  // expected-error @below {{'attn.scatter' index takes 4 positions of type index}}
  "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %d: i64):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.collect' takes the weights of attn.elements}}
  "attn.collect"(%w) {weight = 0} : (none) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %slopes: tensor<?xf32>) {
  %w = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = arith.constant 1.0 : f32
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  // expected-error @below {{'attn.collect' takes weights numbered below 1, got 1}}
  "attn.collect"(%w) {weight = 1} : (none) -> !t
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %slopes: tensor<?xf32>) {
  %w = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = arith.constant 1.0 : f32
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  // expected-error @below {{'attn.collect' makes a tensor of floats shaped like that of attn.elements, got tensor<?x?x?x64xi32>}}
  "attn.collect"(%w) {weight = 0} : (none) -> tensor<?x?x?x64xi32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.row_dot' multiplies tensors of floats of rank 4 with one static head dimension, got tensor<?x?x?x64xf32> and tensor<?x?x?xf32>}}
  "attn.row_dot"(%q, %row) : (!t, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %row: tensor<?x?x?xf32>, %slopes: tensor<?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // expected-error @below {{'attn.row_dot' makes [B, H, S] of f32 or f64, got tensor<?x?x?x1xf32>}}
  "attn.row_dot"(%q, %q) : (!t, !t) -> tensor<?x?x?x1xf32>
  return
}

// -----

%x = ub.poison : tensor<?x?x?x64xi8>
// expected-error @below {{'attn.row_dot' multiplies tensors of floats of rank 4}}
%d = "attn.row_dot"(%x, %x) : (tensor<?x?x?x64xi8>, tensor<?x?x?x64xi8>) -> tensor<?x?x?xf32>

// -----

%x = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.row_dot' takes one residual at most, of a 16-bit tensor tensor<?x?x?x64xf32>, got tensor<?x?x?x64xf32>}}
%d = "attn.row_dot"(%x, %x, %x) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.query_sum' takes weights numbered below 0, got 0}}
%dq = "attn.query_sum"(%w, %q) {weights = array<i64: 0>} : (none, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
%w = "attn.pairs"() : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.collect' makes a tensor of floats shaped like that of attn.elements, got tensor<?x?x?x64xf32>}}
%dq = "attn.collect"(%w) {weight = 0} : (none) -> tensor<?x?x?x64xf32>
%w = "attn.elements"() ({
  "attn.element"() ({
  ^bb0(%x: f32):
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : () -> none
