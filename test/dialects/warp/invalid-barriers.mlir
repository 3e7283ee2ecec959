// What barriers demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'warp.mbarrier' has stages and awaits arrivals, got 2 and 0}}
%b = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 0 : i64>

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
