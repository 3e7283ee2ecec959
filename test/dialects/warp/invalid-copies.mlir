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

%s = ub.poison : memref<?x?x?x64xf8E4M3FN>
%t = ub.poison : memref<96x64xf8E4M3FN, #warp.shared<64 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_async' brings turned tiles [D, n] of 8-bit elements, n a multiple of 32, of a memref [B, H, S, D], got memref<?x?x?x64xf8E4M3FN> and memref<96x64xf8E4M3FN, #warp.shared<64 : i64>>}}
"warp.copy_async"(%s, %i, %i, %i, %i, %t, %b, %i) {turned} : (memref<?x?x?x64xf8E4M3FN>, index, index, index, index, memref<96x64xf8E4M3FN, #warp.shared<64 : i64>>, !warp.barrier<1 : i64, 1 : i64>, index) -> ()

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

// -----

%s = ub.poison : memref<?x?x?xf32>
%t = ub.poison : memref<2x48xf32, #warp.shared<0 : i64>>
%b = ub.poison : !warp.barrier<2 : i64, 33 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_rows_async' copies f32 of a memref [B, H, S] to a memref<stages x n> whose n lanes of a warp share, got memref<?x?x?xf32> and memref<2x48xf32, #warp.shared<0 : i64>>}}
"warp.copy_rows_async"(%s, %i, %i, %i, %t, %b, %i) : (memref<?x?x?xf32>, index, index, index, memref<2x48xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()

// -----

"warp.kernel"() ({
^bb0(%s: memref<?x?x?xf32>):
  %t = "warp.alloc"() : () -> memref<2x64xf32, #warp.shared<0 : i64>>
  %b = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 33 : i64>
  "warp.role"() ({
  ^bb0(%i: index):
    "warp.elect"() ({
      // expected-error @below {{'warp.copy_rows_async' is for all lanes of a warp: it does not stand in 'warp.elect'}}
      "warp.copy_rows_async"(%s, %i, %i, %i, %t, %b, %i) : (memref<?x?x?xf32>, index, index, index, memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 33 : i64>, index) -> ()
    }) : () -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

%s = ub.poison : memref<?x?x?x64xf16>
%t = ub.poison : memref<16x64xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.copy_lanes_async' copies a multiple of 32 rows, which warps share, of whole swizzle atoms, got memref<16x64xf16, #warp.shared<128 : i64>>}}
"warp.copy_lanes_async"(%s, %i, %i, %i, %i, %t) : (memref<?x?x?x64xf16>, index, index, index, index, memref<16x64xf16, #warp.shared<128 : i64>>) -> ()

// -----

"warp.kernel"() ({
^bb0(%s: memref<?x?x?x64xf16>, %t: memref<32x64xf16, #warp.shared<128 : i64>>):
  "warp.role"() ({
  ^bb0(%i: index):
    "warp.elect"() ({
      // expected-error @below {{'warp.copy_lanes_async' is for all lanes of a warpgroup: it does not stand in 'warp.elect'}}
      "warp.copy_lanes_async"(%s, %i, %i, %i, %i, %t) : (memref<?x?x?x64xf16>, index, index, index, index, memref<32x64xf16, #warp.shared<128 : i64>>) -> ()
    }) : () -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 128} : () -> ()
}) {sym_name = "k", function = "", registers = 128, lanes = 32, register_file = 65536, shared_limit = 1024} : () -> ()

// -----

%s = ub.poison : memref<?x?x?x32xf16>
%t = ub.poison : memref<32x64xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.copy_lanes_async' copies rows between a memref [B, H, S, D] and a tile of its elements and columns, got memref<?x?x?x32xf16> and memref<32x64xf16, #warp.shared<128 : i64>>}}
"warp.copy_lanes_async"(%s, %i, %i, %i, %i, %t) : (memref<?x?x?x32xf16>, index, index, index, index, memref<32x64xf16, #warp.shared<128 : i64>>) -> ()

// -----

// expected-error @below {{'warp.copy_wait' leaves some in flight or none, got -1}}
"warp.copy_wait"() {pending = -1} : () -> ()

// -----

%s = ub.poison : memref<?x?x?xf32>
%t = ub.poison : memref<2x64xf32, #warp.shared<0 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.copy_rows_lanes_async' copies a multiple of 32 numbers, which warps share, 64 at most, got 48}}
"warp.copy_rows_lanes_async"(%s, %i, %i, %i, %t, %i, %i) {count = 48} : (memref<?x?x?xf32>, index, index, index, memref<2x64xf32, #warp.shared<0 : i64>>, index, index) -> ()

// -----

%t = ub.poison : memref<2x48xf32, #warp.shared<0 : i64>>
%b = ub.poison : !warp.barrier<2 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.make_rows' writes a stage of a memref<stages x n x f32> in shared memory, n a multiple of 32, got memref<2x48xf32, #warp.shared<0 : i64>>}}
"warp.make_rows"(%t, %b, %i) ({
^bb0(%place: index):
  %x = arith.constant 0.0 : f32
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {summed = true} : (memref<2x48xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 1 : i64>, index) -> ()

// -----

%t = ub.poison : memref<2x64xf32, #warp.shared<0 : i64>>
%b = ub.poison : !warp.barrier<2 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.make_rows' region takes the place, an index}}
"warp.make_rows"(%t, %b, %i) ({
^bb0(%place: f32):
  "warp.yield"(%place) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {summed = true} : (memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 1 : i64>, index) -> ()

// -----

%t = ub.poison : memref<2x64xf32, #warp.shared<0 : i64>>
%b = ub.poison : !warp.barrier<2 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.make_rows' region ends in a 'warp.yield' of one number of f32}}
"warp.make_rows"(%t, %b, %i) ({
^bb0(%place: index):
  "warp.yield"(%place) {operandSegmentSizes = array<i32: 1, 0, 0>} : (index) -> ()
}) {summed = true} : (memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 1 : i64>, index) -> ()

// -----

%t = ub.poison : memref<2x64xf32, #warp.shared<0 : i64>>
%b = ub.poison : !warp.barrier<2 : i64, 1 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.make_rows' takes `summed` as true or false, got 1 : i64}}
"warp.make_rows"(%t, %b, %i) ({
^bb0(%place: index):
  %x = arith.constant 0.0 : f32
  "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
}) {summed = 1 : i64} : (memref<2x64xf32, #warp.shared<0 : i64>>, !warp.barrier<2 : i64, 1 : i64>, index) -> ()

// -----

%s = ub.poison : memref<?x?xi32>
%t = ub.poison : memref<64x64xi32, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 32 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_window_async' copies f16, bf16, f32 of a memref of rank 2 to 4 to a tile that is swizzled over 128 bytes, got memref<?x?xi32> and memref<64x64xi32, #warp.shared<128 : i64>>}}
"warp.copy_window_async"(%s, %i, %i, %t, %b, %i) {rows = 0} : (memref<?x?xi32>, index, index, memref<64x64xi32, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 32 : i64>, index) -> ()

// -----

%s = ub.poison : memref<?x?x?xf32>
%t = ub.poison : memref<64x64xf32, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 32 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_window_async' has an index for each of 3 dimensions, got 2}}
"warp.copy_window_async"(%s, %i, %i, %t, %b, %i) {rows = 0} : (memref<?x?x?xf32>, index, index, memref<64x64xf32, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 32 : i64>, index) -> ()

// -----

%s = ub.poison : memref<?x?xf32>
%t = ub.poison : memref<64x64xf32, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 32 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_window_async' counts its rows along a dimension before the last one, got 1}}
"warp.copy_window_async"(%s, %i, %i, %t, %b, %i) {rows = 1} : (memref<?x?xf32>, index, index, memref<64x64xf32, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 32 : i64>, index) -> ()

// -----

"warp.kernel"() ({
^bb0(%s: memref<?x?xf32>, %t: memref<64x64xf32, #warp.shared<128 : i64>>):
  %b = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 32 : i64>
  "warp.role"() ({
  ^bb0(%i: index):
    "warp.elect"() ({
      // expected-error @below {{'warp.copy_window_async' is for all lanes of a warp: it does not stand in 'warp.elect'}}
      "warp.copy_window_async"(%s, %i, %i, %t, %b, %i) {rows = 0} : (memref<?x?xf32>, index, index, memref<64x64xf32, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 32 : i64>, index) -> ()
    }) : () -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
