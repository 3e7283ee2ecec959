// What maps, reductions and votes demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%x = ub.poison : f32
// expected-error @below {{'warp.map' makes fragments of one instruction}}
%r = "warp.map"() ({
^bb0(%i: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32>

// -----

%x = ub.poison : f32
// expected-error @below {{'warp.map' has "" or one of sum, max, min for each result}}
%r = "warp.map"() ({
^bb0(%i: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = ["product"], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%x = ub.poison : f32
// expected-error @below {{'warp.map' takes `shape` as array<i64>, got 64 : i64}}
%r = "warp.map"() ({
^bb0(%i: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = 64 : i64, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%x = ub.poison : f32
// expected-error @below {{'warp.map' makes fragments of its shape 32, and reduces to parts}}
%r = "warp.map"() ({
^bb0(%i: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = array<i64: 32>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%x = ub.poison : f32
// expected-error @below {{'warp.map' region takes 1 indices, got (index, index)}}
%r = "warp.map"() ({
^bb0(%i: index, %j: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%x = ub.poison : i1
// expected-error @below {{'warp.map' ends in a 'warp.yield' of (f32)}}
%r = "warp.map"() ({
^bb0(%i: index):
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i1) -> ()
}) {reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%t = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
%n = ub.poison : index
// expected-error @below {{'warp.map' reads fragments at the element's own place}}
%r = "warp.map"() ({
^bb0(%i: index):
  %x = tensor.extract %t[%n] : tensor<64xf32, #warp.layout<"wgmma", "rows">>
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = array<i64: 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%p = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
// expected-error @below {{'warp.reduce' makes row values of parts, got tensor<64xf32, #warp.layout<"wgmma", "rows">> of tensor<64xf32, #warp.layout<"wgmma", "rows">>}}
%r = "warp.reduce"(%p) {kind = "sum"} : (tensor<64xf32, #warp.layout<"wgmma", "rows">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%p = ub.poison : tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
// expected-error @below {{'warp.reduce' reduces by sum, max, min, got 'product'}}
%r = "warp.reduce"(%p) {kind = "product"} : (tensor<64x4xf32, #warp.layout<"wgmma", "parts">>) -> tensor<64xf32, #warp.layout<"wgmma", "rows">>

// -----

%p = ub.poison : tensor<64xf32, #warp.layout<"wgmma", "rows">>
// expected-error @below {{'warp.vote' asks for a tile, row values or parts of i1, got tensor<64xf32, #warp.layout<"wgmma", "rows">>}}
%r = "warp.vote"(%p) : (tensor<64xf32, #warp.layout<"wgmma", "rows">>) -> i1

// -----

%p = ub.poison : tensor<64xi1, #warp.layout<"wgmma", "rows">>
// expected-error @below {{'warp.vote' asks one warp: it stands in 'warp.each_warp'}}
%r = "warp.vote"(%p) : (tensor<64xi1, #warp.layout<"wgmma", "rows">>) -> i1

// -----

%p = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.reaches' asks for a tile of f16 or bf16, got tensor<64x64xf32, #warp.layout<"wgmma", "tile">>}}
%r = "warp.reaches"(%p) {limit = 1.0 : f32} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>) -> i1

// -----

%p = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.reaches' has a `limit` above 0 of the tile's elements, got 1.000000e+00 : f32}}
%r = "warp.reaches"(%p) {limit = 1.0 : f32} : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>) -> i1

// -----

%p = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.reaches' asks one warp: it stands in 'warp.each_warp'}}
%r = "warp.reaches"(%p) {limit = 1.0 : f16} : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>) -> i1

// -----

%t = ub.poison : memref<64x64xf32, #warp.shared<128 : i64>>
// expected-error @below {{'warp.map' reads tiles of its shape in shared memory at the element's own place}}
%r = "warp.map"() ({
^bb0(%i: index, %j: index):
  %x = memref.load %t[%i, %i] : memref<64x64xf32, #warp.shared<128 : i64>>
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
%b = ub.poison : memref<1x256xi32, #warp.shared<0 : i64>>
// expected-error @below {{'warp.drop' makes a tile of f16 or bf16, of a multiple of 128 columns, of one of its type, got tensor<64x64xf16}}
%r = "warp.drop"(%t, %b) ({
^bb0(%i: index, %j: index):
  %x = arith.cmpi eq, %i, %j : index
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i1) -> ()
}) {unroll = 7 : i64} : (tensor<64x64xf16, #warp.layout<"wgmma", "tile">>, memref<1x256xi32, #warp.shared<0 : i64>>) -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
%b = ub.poison : memref<1x256xi32, #warp.shared<0 : i64>>
// expected-error @below {{'warp.drop' has 512 i32 for each warpgroup, got memref<1x256xi32}}
%r = "warp.drop"(%t, %b) ({
^bb0(%i: index, %j: index):
  %x = arith.cmpi eq, %i, %j : index
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i1) -> ()
}) {unroll = 7 : i64} : (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<1x256xi32, #warp.shared<0 : i64>>) -> tensor<64x128xf16, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
%b = ub.poison : memref<1x512xi32, #warp.shared<0 : i64>>
// expected-error @below {{'warp.drop' region takes a place, two indices}}
%r = "warp.drop"(%t, %b) ({
^bb0(%i: index):
  %x = arith.cmpi eq, %i, %i : index
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i1) -> ()
}) {unroll = 7 : i64} : (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<1x512xi32, #warp.shared<0 : i64>>) -> tensor<64x128xf16, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
%b = ub.poison : memref<1x512xi32, #warp.shared<0 : i64>>
// expected-error @below {{'warp.drop' region ends in a 'warp.yield' of one bit}}
%r = "warp.drop"(%t, %b) ({
^bb0(%i: index, %j: index):
  "warp.yield"(%i) {operandSegmentSizes = array<i32: 1, 0, 0>} : (index) -> ()
}) {unroll = 7 : i64} : (tensor<64x128xf16, #warp.layout<"wgmma", "tile">>, memref<1x512xi32, #warp.shared<0 : i64>>) -> tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
