// What accesses to global memory demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%r = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
%m = ub.poison : memref<?x?x?x64xf16>
%i = ub.poison : index
// expected-error @below {{'warp.store' moves a tile [B, H, S, D] or row values [B, H, S], got tensor<64xf32, #warp.layout<"wgmma", "rows">> and memref<?x?x?x64xf16>}}
"warp.store"(%r, %m, %i, %i, %i) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?x64xf16>, index, index, index) -> ()

// -----

%m = ub.poison : memref<?xi64>
%i = ub.poison : index
// expected-error @below {{'warp.order_wait' counts in a memref<?xi32> of global memory, got memref<?xi64>}}
"warp.order_wait"(%m, %i, %i) : (memref<?xi64>, index, index) -> ()

// -----

%r = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%m = ub.poison : memref<?x?x?x32xf32>
%i = ub.poison : index
// expected-error @below {{'warp.atomic_add' adds a tile to [B, H, S, D] or row values to [B, H, S], got tensor<64x64xf32, #warp.layout<"wgmma", "tile">> and memref<?x?x?x32xf32>}}
"warp.atomic_add"(%r, %m, %i, %i, %i, %i) {ordered = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<?x?x?x32xf32>, index, index, index, index) -> ()

// -----

%r = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
%m = ub.poison : memref<?x?x?xf32>
%i = ub.poison : index
// expected-error @below {{'warp.atomic_add' takes `ordered` as true or false, got 1 : i64}}
"warp.atomic_add"(%r, %m, %i, %i, %i, %i) {ordered = 1 : i64} : (tensor<64xf32, #warp.layout<"wgmma", "rows">>, memref<?x?x?xf32>, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'warp.order_pass' is for one thread: it stands in 'warp.elect'}}
"warp.order_pass"(%m, %i, %i) : (memref<?xi32>, index, index) -> ()

// -----

%m = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'warp.claim' is for one thread: it stands in 'warp.elect'}}
%f = "warp.claim"(%m, %i, %i) : (memref<?xi32>, index, index) -> i1

// -----

%m = ub.poison : memref<?xi64>
%i = ub.poison : index
// expected-error @below {{'warp.order_now' counts in a memref<?xi32> of global memory, got memref<?xi64>}}
%n = "warp.order_now"(%m, %i) : (memref<?xi64>, index) -> index
