// What packed tensors demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
// expected-error @below {{'attn.sequences' belongs inside attn.attention or attn.online or attn.combine or attn.pairs or attn.elements}}
"attn.sequences"(%n, %n) {of = "query"} : (tensor<?xi32>, tensor<?xi32>) -> ()

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%x = ub.poison : tensor<?xf32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.sequences' takes `begins` as a tensor of i32 or i64, [sequences], got tensor<?xf32>}}
  "attn.sequences"(%x, %n) {of = "query"} : (tensor<?xf32>, tensor<?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.sequences' takes `of` as query or key, got value}}
  "attn.sequences"(%n, %n) {of = "value"} : (tensor<?xi32>, tensor<?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.sequences' is there once for each side, got 2 of key}}
  "attn.sequences"(%n, %n) {of = "key"} : (tensor<?xi32>, tensor<?xi32>) -> ()
  "attn.sequences"(%n, %n) {of = "key"} : (tensor<?xi32>, tensor<?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.sequences' comes for queries and for keys}}
  "attn.sequences"(%n, %n) {of = "key"} : (tensor<?xi32>, tensor<?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%w = "attn.elements"(%q) ({
  // expected-error @below {{'attn.sequences' comes for one side of elements}}
  "attn.sequences"(%n, %n) {of = "query"} : (tensor<?xi32>, tensor<?xi32>) -> ()
  "attn.sequences"(%n, %n) {of = "key"} : (tensor<?xi32>, tensor<?xi32>) -> ()
}) : (tensor<?x?x?x64xf32>) -> none

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%w = "attn.elements"(%q) ({
  // expected-error @below {{'attn.sequences' has `by_heads` for the queries of an attention}}
  "attn.sequences"(%n, %n) {of = "query", by_heads} : (tensor<?xi32>, tensor<?xi32>) -> ()
}) : (tensor<?x?x?x64xf32>) -> none
