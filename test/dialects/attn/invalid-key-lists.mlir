// What lists of keys demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%r = ub.poison : tensor<?x?x?x?xi64>
// expected-error @below {{'attn.key_lists' belongs inside attn.attention or attn.online or attn.pairs}}
"attn.key_lists"(%n, %r, %n, %n, %r) {block = array<i64: 1, 1, 1>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%r = ub.poison : tensor<?x?x?x?xi64>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.key_lists' takes `ranges` as a tensor of i64 and rank 4, got tensor<?xi32>}}
  "attn.key_lists"(%n, %n, %n, %n, %r) {block = array<i64: 1, 1, 1>} : (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%r = ub.poison : tensor<?x?x?x?xi64>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.key_lists' takes `block` as three positive sizes (bq, bk, tile) in array<i64>, got array<i64: 1, 1>}}
  "attn.key_lists"(%n, %r, %n, %n, %r) {block = array<i64: 1, 1>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%r = ub.poison : tensor<?x?x?x?xi64>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.key_lists' has tiles that divide a block of 48 keys, or of at most 32 where blocks have 1, got 32}}
  "attn.key_lists"(%n, %r, %n, %n, %r) {block = array<i64: 1, 48, 32>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
