// What barriers demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'warp.mbarrier' has stages and awaits arrivals, got 2 and 0}}
%b = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 0 : i64>

// -----

"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    // expected-error @below {{'warp.mbarrier' is initialised before the roles begin: it stands before all of them}}
    %b = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
  }) {sym_name = "producer", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "producer", warpgroups = 1, warps = 4, registers = 168} : () -> ()
  // expected-error @below {{'warp.mbarrier' is initialised before the roles begin: it stands before all of them}}
  %b = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

%b = ub.poison : !warp.barrier<1 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.arrive_expect' announces bytes, got 0}}
"warp.arrive_expect"(%b, %i) {bytes = 0} : (!warp.barrier<1 : i64, 1 : i64>, index) -> ()

// -----

%b = ub.poison : !warp.barrier<1 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.arrive_expect' is for one thread: it stands in 'warp.elect'}}
"warp.arrive_expect"(%b, %i) {bytes = 8} : (!warp.barrier<1 : i64, 1 : i64>, index) -> ()

// -----

%i = ub.poison : index
// expected-error @below {{'warp.named_sync' counts threads of whole warps, got 100}}
"warp.named_sync"(%i) {threads = 100} : (index) -> ()

// -----

%i = ub.poison : index
// expected-error @below {{'warp.stage' has stages, got 0}}
%stage, %phase = "warp.stage"(%i) {stages = 0} : (index) -> (index, index)
