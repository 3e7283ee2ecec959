// What matrix products demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'warp.registers' are those of a tile that fits its layout, got tensor<48x64xf32, #warp.layout<"wgmma", "tile">>}}
%r = "warp.registers"() : () -> tensor<48x64xf32, #warp.layout<"wgmma", "tile">>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' gives what it adds to, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, got tensor<64x64xf16, #warp.layout<"wgmma", "tile">>}}
%p = "warp.mma_async"(%c, %a, %b, %k) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf16, #warp.layout<"wgmma", "tile">>>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
// expected-error @below {{'warp.mma' gives a tile like its accumulator, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, got tensor<64x64xf16, #warp.layout<"wgmma", "tile">>}}
%p = "warp.mma"(%c, %a, %b) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x64xf16, #warp.shared<128 : i64>>) -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' takes `transpose_a` and `transpose_b` as true or false}}
%p = "warp.mma_async"(%c, %a, %b, %k) {transpose_a = 0, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' adds to a tile: a in registers or shared memory times b in shared memory, got tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x64xf16, #warp.layout<"wgmma", "tile">>}}
%p = "warp.mma_async"(%c, %a, %b, %k) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
%b = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' transposes a in shared memory only, got tensor<64x64xf16, #warp.layout<"wgmma", "tile">>}}
%p = "warp.mma_async"(%c, %a, %b, %k) {transpose_a = true, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<64x32xf16, #warp.shared<128 : i64>>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' shapes do not fit: memref<64x64xf16, #warp.shared<128 : i64>> times memref<64x32xf16, #warp.shared<128 : i64>> into tensor<64x64xf32, #warp.layout<"wgmma", "tile">>}}
%p = "warp.mma_async"(%c, %a, %b, %k) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x32xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>

// -----

%p = ub.poison : !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
// expected-error @below {{'warp.mma_wait' gives the fragment that it waits for, tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, got tensor<64xf32, #warp.layout<"wgmma", "rows">>}}
%t = "warp.mma_wait"(%p) {pending = 0} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%p = ub.poison : !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
// expected-error @below {{'warp.mma_wait' leaves some groups in flight or none, got -1}}
%t = "warp.mma_wait"(%p) {pending = -1} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// -----

%c = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf8E4M3FN, #warp.shared<64 : i64>>
%k = ub.poison : i1
// expected-error @below {{'warp.mma_async' of 8-bit elements takes a and b whose columns are summed over, got memref<64x64xf8E4M3FN, #warp.shared<64 : i64>> and memref<64x64xf8E4M3FN, #warp.shared<64 : i64>>}}
%p = "warp.mma_async"(%c, %a, %a, %k) {transpose_a = false, transpose_b = false} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf8E4M3FN, #warp.shared<64 : i64>>, memref<64x64xf8E4M3FN, #warp.shared<64 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>

// -----

// expected-error @below {{'warp.registers' are those of a tile that fits its layout, got tensor<64x48xf8E4M3FN, #warp.layout<"wgmma", "tile">>}}
%r = "warp.registers"() : () -> tensor<64x48xf8E4M3FN, #warp.layout<"wgmma", "tile">>

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%h = ub.poison : tensor<64x16xbf16, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.hold' holds the first columns of a tile in shared memory, got tensor<64x16xbf16, #warp.layout<"wgmma", "tile">> of memref<64x64xf16, #warp.shared<128 : i64>>}}
%r = "warp.hold"(%a, %h) : (memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x16xbf16, #warp.layout<"wgmma", "tile">>) -> memref<64x64xf16, #warp.shared<128 : i64>>

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%h = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.hold' holds a multiple of 16 of the 64 columns, not all, got 64}}
%r = "warp.hold"(%a, %h) : (memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x64xf16, #warp.layout<"wgmma", "tile">>) -> memref<64x64xf16, #warp.shared<128 : i64>>

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%h = ub.poison : tensor<64x16xf16, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.hold' gives the tile that it takes, got memref<64x32xf16, #warp.shared<128 : i64>>}}
%r = "warp.hold"(%a, %h) : (memref<64x64xf16, #warp.shared<128 : i64>>, tensor<64x16xf16, #warp.layout<"wgmma", "tile">>) -> memref<64x32xf16, #warp.shared<128 : i64>>
