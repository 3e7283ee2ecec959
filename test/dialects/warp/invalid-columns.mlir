// What columns of fragments, their sums, diagonals, and rows that become zeros or leave by lanes demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%t = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.columns' gives columns of a tile, got tensor<64x32xf16, #warp.layout<"wgmma", "tile">> of tensor<64x64xf32, #warp.layout<"wgmma", "tile">>}}
%c = "warp.columns"(%t) {first = 0 : i64} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>) -> tensor<64x32xf16, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
// expected-error @below {{'warp.columns' begins and ends at multiples of 16 of 64 columns, got 32 from 40 on}}
%c = "warp.columns"(%t) {first = 40 : i64} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>) -> tensor<64x32xf32, #warp.layout<"wgmma", "tile">>

// -----

%t = ub.poison : tensor<64x32xf32, #warp.layout<"wgmma", "tile">>
%n = ub.poison : memref<4x64xf32, #warp.shared<0 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.sum_columns' adds up a tile 64x64 of f32 into memref<m x 64 x f32>, m a multiple of 4, got tensor<64x32xf32, #warp.layout<"wgmma", "tile">> and memref<4x64xf32, #warp.shared<0 : i64>>}}
"warp.sum_columns"(%t, %n, %i) : (tensor<64x32xf32, #warp.layout<"wgmma", "tile">>, memref<4x64xf32, #warp.shared<0 : i64>>, index) -> ()

// -----

%n = ub.poison : memref<4x64xf32, #warp.shared<0 : i64>>
%m = ub.poison : memref<?x?x?xf16>
%i = ub.poison : index
// expected-error @below {{'warp.store_sums' stores sums of memref<m x n x f32> to a memref [B, H, S] of f32, maybe in slots, got memref<4x64xf32, #warp.shared<0 : i64>> and memref<?x?x?xf16>}}
"warp.store_sums"(%n, %m, %i, %i, %i, %i, %i) : (memref<4x64xf32, #warp.shared<0 : i64>>, memref<?x?x?xf16>, index, index, index, index, index) -> ()

// -----

%t = ub.poison : tensor<64x32xf32, #warp.layout<"wgmma", "tile">>
%n = ub.poison : memref<2x64xf32, #warp.shared<0 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.write_diagonal' writes the diagonal of a tile of m rows of f32 to memref<1 x m x f32>, got tensor<64x32xf32, #warp.layout<"wgmma", "tile">> and memref<2x64xf32, #warp.shared<0 : i64>>}}
"warp.write_diagonal"(%t, %n, %i) : (tensor<64x32xf32, #warp.layout<"wgmma", "tile">>, memref<2x64xf32, #warp.shared<0 : i64>>, index) -> ()

// -----

%t = ub.poison : memref<16x64xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.clear_rows' clears a multiple of 32 rows of whole swizzle atoms of 128 bytes, got memref<16x64xf16, #warp.shared<128 : i64>>}}
"warp.clear_rows"(%t, %i) : (memref<16x64xf16, #warp.shared<128 : i64>>, index) -> ()

// -----

%s = ub.poison : memref<?x?x?x128xf16>
%t = ub.poison : memref<32x128xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.store_lanes' stores a multiple of 32 rows, which warps share, of one swizzle atom each, got memref<32x128xf16, #warp.shared<128 : i64>>}}
"warp.store_lanes"(%t, %s, %i, %i, %i, %i, %i) : (memref<32x128xf16, #warp.shared<128 : i64>>, memref<?x?x?x128xf16>, index, index, index, index, index) -> ()

// -----

"warp.kernel"() ({
^bb0(%s: memref<?x?x?x64xf16>, %t: memref<32x64xf16, #warp.shared<128 : i64>>):
  "warp.role"() ({
  ^bb0(%i: index):
    "warp.elect"() ({
      // expected-error @below {{'warp.store_lanes' is for all lanes of a warpgroup: it does not stand in 'warp.elect'}}
      "warp.store_lanes"(%t, %s, %i, %i, %i, %i, %i) : (memref<32x64xf16, #warp.shared<128 : i64>>, memref<?x?x?x64xf16>, index, index, index, index, index) -> ()
    }) : () -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 128} : () -> ()
}) {sym_name = "k", function = "", registers = 128, lanes = 32, register_file = 65536, shared_limit = 1024} : () -> ()

// -----

%s = ub.poison : memref<?x?x?x32xf16>
%t = ub.poison : memref<32x64xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.store_lanes' stores rows of a tile in columns of a memref [B, H, S, D] of its elements, got memref<32x64xf16, #warp.shared<128 : i64>> and memref<?x?x?x32xf16>}}
"warp.store_lanes"(%t, %s, %i, %i, %i, %i, %i) : (memref<32x64xf16, #warp.shared<128 : i64>>, memref<?x?x?x32xf16>, index, index, index, index, index) -> ()
