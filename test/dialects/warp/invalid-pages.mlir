// What copies of rows in pages ask of their table, of what was found, of their tile, and of where they stand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%p = ub.poison : memref<?x?xi64>
%i = ub.poison : index
// expected-error @below {{'warp.find_pages' reads a table of pages, a memref [sequences, pages] of i32, got memref<?x?xi64>}}
%0:2 = "warp.find_pages"(%p, %i, %i, %i, %i) : (memref<?x?xi64>, index, index, index, index) -> (vector<4xindex>, vector<4xindex>)

// -----

%p = ub.poison : memref<?x?xi32>
%i = ub.poison : index
// expected-error @below {{'warp.find_pages' gives two numbers of each part, 32 parts at most, got vector<4xindex> and vector<3xindex>}}
%0:2 = "warp.find_pages"(%p, %i, %i, %i, %i) : (memref<?x?xi32>, index, index, index, index) -> (vector<4xindex>, vector<3xindex>)

// -----

%s = ub.poison : memref<?x?x?x64xf16>
%n = ub.poison : vector<4xindex>
%t = ub.poison : memref<72x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 4 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_pages_async' copies a multiple of 16 rows of a memref [pages, H, size, D] to a swizzled tile, got memref<?x?x?x64xf16> and memref<72x64xf16, #warp.shared<128 : i64>>}}
"warp.copy_pages_async"(%s, %n, %n, %i, %i, %i, %t, %b, %i) : (memref<?x?x?x64xf16>, vector<4xindex>, vector<4xindex>, index, index, index, memref<72x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 4 : i64>, index) -> ()

// -----

%s = ub.poison : memref<?x?x?x64xf16>
%n = ub.poison : vector<8xindex>
%t = ub.poison : memref<64x64xf16, #warp.shared<128 : i64>>
%b = ub.poison : !warp.barrier<1 : i64, 4 : i64>
%i = ub.poison : index
// expected-error @below {{'warp.copy_pages_async' takes the pages of 4 parts, and the places of these there, got vector<8xindex> and vector<8xindex>}}
"warp.copy_pages_async"(%s, %n, %n, %i, %i, %i, %t, %b, %i) : (memref<?x?x?x64xf16>, vector<8xindex>, vector<8xindex>, index, index, index, memref<64x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 4 : i64>, index) -> ()

// -----

"warp.kernel"() ({
^bb0(%s: memref<?x?x?x64xf16>, %p: memref<?x?xi32>, %t: memref<64x64xf16, #warp.shared<128 : i64>>):
  %b = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 4 : i64>
  "warp.role"() ({
  ^bb0(%i: index):
    %n:2 = "warp.find_pages"(%p, %i, %i, %i, %i) : (memref<?x?xi32>, index, index, index, index) -> (vector<4xindex>, vector<4xindex>)
    "warp.elect"() ({
      // expected-error @below {{'warp.copy_pages_async' is for all warps of a warpgroup: it does not stand in 'warp.elect'}}
      "warp.copy_pages_async"(%s, %n#0, %n#1, %i, %i, %i, %t, %b, %i) : (memref<?x?x?x64xf16>, vector<4xindex>, vector<4xindex>, index, index, index, memref<64x64xf16, #warp.shared<128 : i64>>, !warp.barrier<1 : i64, 4 : i64>, index) -> ()
    }) : () -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
