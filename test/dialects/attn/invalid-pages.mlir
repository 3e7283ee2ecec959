// What keys in pages demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%n = ub.poison : tensor<?x?xi32>
// expected-error @below {{'attn.pages' belongs inside attn.attention or attn.online}}
"attn.pages"(%n) : (tensor<?x?xi32>) -> ()

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?xi32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.pages' takes `table` as a tensor of i32 or i64, [sequences, pages], got tensor<?xi32>}}
  "attn.pages"(%n) : (tensor<?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%n = ub.poison : tensor<?x?xi32>
%o = "attn.attention"(%q, %q, %q) ({
  // expected-error @below {{'attn.pages' comes beside the 'attn.sequences' of keys}}
  "attn.pages"(%n) : (tensor<?x?xi32>) -> ()
}) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
