// What `attn.pairs`, `attn.elements` and their pieces demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.pairs' returns none, got index}}
%w = "attn.pairs"() ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  "attn.pair"() ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : () -> index

// -----

// expected-error @below {{'attn.pairs' lacks its 'attn.product' piece}}
%w = "attn.pairs"() ({
  "attn.pair"() ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %x = arith.constant 1.0 : f32
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.pairs' holds pieces only (attn.block_mask, attn.key_lists, attn.mask, attn.pages, attn.pair, attn.product, attn.query_bounds, attn.sequences), found 'arith.constant'}}
%w = "attn.pairs"() ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  %c = arith.constant 1 : index
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%w = "attn.pairs"() ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  // expected-error @below {{'attn.pair' takes (2 products, b, h, q_idx, kv_idx), got (score, index, index, index, index)}}
  "attn.pair"() ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%w = "attn.pairs"() ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  // expected-error @below {{'attn.pair' yields one or more weights, got none}}
  "attn.pair"() ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"() : () -> ()
  }) : () -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x64xf32>
%w = "attn.pairs"() ({
  // expected-error @below {{'attn.product' multiplies tensors of rank 4, got tensor<?x?x?x64xf32> and tensor<?x?x64xf32>}}
  "attn.product"(%q, %k) : (tensor<?x?x?x64xf32>, tensor<?x?x64xf32>) -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf16>
%w = "attn.pairs"() ({
  // expected-error @below {{'attn.product' multiplies tensors of one element type and one static head dimension, got tensor<?x?x?x64xf32> and tensor<?x?x?x64xf16>}}
  "attn.product"(%q, %k) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf16>) -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x?xf32>
%w = "attn.pairs"() ({
  // expected-error @below {{'attn.product' multiplies tensors of one element type and one static head dimension, got tensor<?x?x?x?xf32> and tensor<?x?x?x?xf32>}}
  "attn.product"(%q, %q) : (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>) -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%w = "attn.pairs"() ({
  "attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
  // expected-error @below {{'attn.query_bounds' takes (b, h, kv_begin, kv_end), got (index, index, index)}}
  "attn.query_bounds"() ({
  ^bb0(%b: index, %h: index, %j0: index):
    "attn.yield"(%j0, %j0, %j0, %j0) : (index, index, index, index) -> ()
  }) : () -> ()
}) : () -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.product' belongs inside attn.pairs or attn.attention or attn.online}}
"attn.product"(%q, %q) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()

// -----

%t = ub.poison : tensor<?xf32>
// expected-error @below {{'attn.elements' runs over a tensor of rank 3 or 4, got tensor<?xf32>}}
%w = "attn.elements"(%t) ({
  "attn.element"() ({
  ^bb0(%b: index):
    %x = arith.constant 1.0 : f32
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : (tensor<?xf32>) -> none

// -----

%t = ub.poison : tensor<?x?x?x?xf32>
// expected-error @below {{'attn.elements' runs over a tensor with a static number of columns, got tensor<?x?x?x?xf32>}}
%w = "attn.elements"(%t) ({
  "attn.element"() ({
  ^bb0(%b: index):
    %x = arith.constant 1.0 : f32
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : (tensor<?x?x?x?xf32>) -> none

// -----

%t = ub.poison : tensor<?x?x?xf32>
// expected-error @below {{'attn.elements' returns none, got f32}}
%w = "attn.elements"(%t) ({
  "attn.element"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %x = arith.constant 1.0 : f32
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : (tensor<?x?x?xf32>) -> f32

// -----

%t = ub.poison : tensor<?x?x?x32xf32>
%w = "attn.elements"(%t) ({
  // expected-error @below {{'attn.element' takes (b, h, i, d), got (index, index, index)}}
  "attn.element"() ({
  ^bb0(%b: index, %h: index, %i: index):
    %x = arith.constant 1.0 : f32
    "attn.yield"(%x) : (f32) -> ()
  }) : () -> ()
}) : (tensor<?x?x?x32xf32>) -> none
