// What shared memory demands.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'warp.alloc' makes a static memref of rank 2 or 3 in #warp.shared, got memref<2x64x64xf16>}}
%a = "warp.alloc"() : () -> memref<2x64x64xf16>

// -----

// expected-error @below {{'warp.alloc' is swizzled over 0, 32, 64 or 128 bytes in rows of a multiple of 32 bytes, got 128 for 80 bytes}}
%a = "warp.alloc"() : () -> memref<2x64x40xf16, #warp.shared<128 : i64>>

// -----

%a = ub.poison : memref<2x64x64xf16, #warp.shared<128 : i64>>
%i = ub.poison : index
// expected-error @below {{'warp.view' is a part of a stage of memref<2x64x64xf16, #warp.shared<128 : i64>>, got memref<128x64xf16, #warp.shared<128 : i64>>}}
%v = "warp.view"(%a, %i, %i, %i) : (memref<2x64x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<128x64xf16, #warp.shared<128 : i64>>

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<64x8xf16>
// expected-error @below {{'warp.concat' puts tiles in shared memory side by side, got memref<64x64xf16, #warp.shared<128 : i64>> and memref<64x8xf16>}}
%v = "warp.concat"(%a, %b) : (memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x8xf16>) -> memref<64x72xf16, #warp.shared<128 : i64>>

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : memref<32x8xf16, #warp.shared<128 : i64>>
// expected-error @below {{'warp.concat' has the columns of both, got memref<64x64xf16, #warp.shared<128 : i64>>, memref<32x8xf16, #warp.shared<128 : i64>> and memref<64x72xf16, #warp.shared<128 : i64>>}}
%v = "warp.concat"(%a, %b) : (memref<64x64xf16, #warp.shared<128 : i64>>, memref<32x8xf16, #warp.shared<128 : i64>>) -> memref<64x72xf16, #warp.shared<128 : i64>>

// -----

%t = ub.poison : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
// expected-error @below {{'warp.write' moves a tile between registers and shared memory of its shape, got tensor<64x64xf32, #warp.layout<"wgmma", "tile">> and memref<64x64xf16, #warp.shared<128 : i64>>}}
"warp.write"(%t, %a) : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>) -> ()

// -----

%a = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
// expected-error @below {{'warp.transpose' moves 8-bit elements between tiles [m, n] and [n, m] in shared memory, got memref<64x64xf16, #warp.shared<128 : i64>> and memref<64x64xf16, #warp.shared<128 : i64>>}}
"warp.transpose"(%a, %a) : (memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x64xf16, #warp.shared<128 : i64>>) -> ()

// -----

%a = ub.poison : memref<16x64xf8E5M2, #warp.shared<64 : i64>>
%b = ub.poison : memref<64x16xf8E5M2, #warp.shared<64 : i64>>
// expected-error @below {{'warp.transpose' takes multiples of 32 rows and 16 columns at once, got memref<16x64xf8E5M2, #warp.shared<64 : i64>>}}
"warp.transpose"(%a, %b) : (memref<16x64xf8E5M2, #warp.shared<64 : i64>>, memref<64x16xf8E5M2, #warp.shared<64 : i64>>) -> ()

// -----

%a = ub.poison : memref<64x128xf16, #warp.shared<128 : i64>>
// expected-error @below {{'warp.read_transposed' moves the transpose of a tile in shared memory, got tensor<64x64xf16, #warp.layout<"wgmma", "tile">> and memref<64x128xf16, #warp.shared<128 : i64>>}}
%t = "warp.read_transposed"(%a) : (memref<64x128xf16, #warp.shared<128 : i64>>) -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// -----

%a = ub.poison : memref<64x64xf32, #warp.shared<128 : i64>>
// expected-error @below {{'warp.read_transposed' takes elements of 16 bits in rows of one swizzle atom, got memref<64x64xf32, #warp.shared<128 : i64>>}}
%t = "warp.read_transposed"(%a) : (memref<64x64xf32, #warp.shared<128 : i64>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// -----

%q = ub.poison : memref<?x?x?x64xf16>
// expected-error @below {{'warp.rows_of_heads' sees a memref [B, H, S, D] or [B, H, S] by rows of several heads, got memref<?x?x?x64xf16> and 1}}
%v = "warp.rows_of_heads"(%q) {heads = 1 : i64} : (memref<?x?x?x64xf16>) -> memref<?x?x?x64xf16>
