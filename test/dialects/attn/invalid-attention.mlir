// What `attn.attention` and `attn.online` demand of their operands, results and pieces.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' takes k as a rank-4 tensor [batch, head, position, dim], got tensor<?x?x64xf32>}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x?xf32>
// expected-error @below {{'attn.attention' needs a static head dimension of v, got tensor<?x?x?x?xf32>}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x32xf32>
%v = ub.poison : tensor<?x?x?x32xf32>
// expected-error @below {{'attn.attention' needs equal head dimensions of q and k, got 64 and 32}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?x32xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf16>
// expected-error @below {{'attn.attention' needs one element type for q, k and v, or k and v of one with 8 bits, got tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf16>}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' produces o as a rank-4 tensor with v's head dimension and element type, or a wider one, got tensor<?x?x?x32xf32>}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x32xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' takes `outputs` as an array of strings}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = [1]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' names 1 row outputs but produces 0}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' produces every row output as a rank-3 tensor [batch, head, position] of f32 or f64}}
%o:2 = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xi32>)

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' takes `rows_nonempty` as true or false}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = [], rows_nonempty = 1} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' has one block without arguments, holding its pieces}}
%o = "attn.attention"(%q, %k, %v) ({
  ^bb0(%x: f32):
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' holds pieces only (attn.block_mask, attn.bounds, attn.key, attn.key_lists, attn.mask, attn.pages, attn.product, attn.query, attn.row, attn.score, attn.sequences, attn.term, attn.value), found 'arith.constant'}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  %c = arith.constant 1 : index
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' holds more than one 'attn.row'}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%k = ub.poison : tensor<?x?x?x64xf32>
%v = ub.poison : tensor<?x?x?x64xf32>
// expected-error @below {{'attn.attention' lacks its 'attn.row' piece}}
%o = "attn.attention"(%q, %k, %v) ({
  "attn.score"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xindex>
// expected-error @below {{'attn.attention' takes q, k and v of floating-point numbers, got tensor<?x?x?x64xindex>}}
%o = "attn.attention"(%q, %q, %q) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xindex>, tensor<?x?x?x64xindex>, tensor<?x?x?x64xindex>) -> tensor<?x?x?x64xindex>

// -----

// 8-bit queries are not of another type than keys.
%q = ub.poison : tensor<?x?x?x64xf8E5M2>
%k = ub.poison : tensor<?x?x?x64xbf16>
// expected-error @below {{'attn.attention' needs one element type for q, k and v, or k and v of one with 8 bits}}
%o = "attn.attention"(%q, %k, %k) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>) -> tensor<?x?x?x64xbf16>

// -----

// An output is wider than v only where v has 16 or 8 bits.
%q = ub.poison : tensor<?x?x?x64xf16>
// expected-error @below {{'attn.attention' produces o as a rank-4 tensor with v's head dimension and element type, or a wider one, got tensor<?x?x?x64xf8E5M2>}}
%o = "attn.attention"(%q, %q, %q) ({
  "attn.row"() ({
  ^bb0(%s: f32, %b: index, %h: index, %i: index):
    "attn.yield"(%s) : (f32) -> ()
  }) : () -> ()
}) {outputs = []} : (tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf8E5M2>
