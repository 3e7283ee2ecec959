// What parts of packed sequences demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'attn.part_list' belongs inside attn.online or attn.combine}}
"attn.part_list"() : () -> ()

// -----

%q = ub.poison : tensor<?x?x?x64xf32>
%o = "attn.online"(%q, %q, %q) ({
  // expected-error @below {{'attn.part_list' comes beside the 'attn.sequences' of queries}}
  "attn.part_list"() : () -> ()
}) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
