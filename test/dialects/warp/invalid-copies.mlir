// What asynchronous copies demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%s = ub.poison : memref<?x?x?x32xf16>
%t = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_async' copies rows between a memref [B, H, S, D] and a tile of its elements and columns, got memref<?x?x?x32xf16> and memref<64x64xf16, #warp.shared<128 : i64>>}}
"warp.copy_async"(%s, %i, %i, %i, %i, %t, %b, %i) : (memref<?x?x?x32xf16>, index, index, index, index, memref<64x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()

// -----

%s = ub.poison : memref<?x?x?x64xf16>
%t = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_async' is for one thread: it stands in 'warp.elect'}}
"warp.copy_async"(%s, %i, %i, %i, %i, %t, %b, %i) : (memref<?x?x?x64xf16>, index, index, index, index, memref<64x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()

// -----

// expected-error @below {{'warp.store_wait' takes `read` as true or false, got 1 : i64}}
"warp.store_wait"() {pending = 0, read = 1 : i64} : () -> ()

// -----

// expected-error @below {{'warp.store_wait' leaves some in flight or none, got -1}}
"warp.store_wait"() {pending = -1, read = true} : () -> ()

// -----

%p = ub.poison : !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
// expected-error @below {{'warp.load_wait' gives the fragment that it waits for, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, got tensor<64xf32, #warp.layout<"wgmma", "rows">>}}
%t = "warp.load_wait"(%p) {pending = 0} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>
