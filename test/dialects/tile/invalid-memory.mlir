// What the grid and the traffic with global memory demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{'tile.program_id' has axes 0 to 2 (block, head, batch), got 3}}
%p = "tile.program_id"() {axis = 3} : () -> index

// -----

%m = ub.poison : memref<?x64xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load' reads a rank-4 memref [B, H, S, D], got memref<?x64xf32>}}
%t = "tile.load"(%m, %i, %i, %i, %i) : (memref<?x64xf32>, index, index, index, index) -> tensor<?x64xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load' makes a rank-2 tile, got tensor<?xf32>}}
%t = "tile.load"(%m, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, index, index, index, index) -> tensor<?xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load' keeps the head dimension 64, got tensor<?x32xf32>}}
%t = "tile.load"(%m, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, index, index, index, index) -> tensor<?x32xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load' keeps the element type f32, or widens it, got tensor<?x64xf16>}}
%t = "tile.load"(%m, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, index, index, index, index) -> tensor<?x64xf16>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%n = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'tile.load_pages' reads a table of integers [sequences, pages], got memref<?xi32>}}
%t = "tile.load_pages"(%m, %n, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, memref<?xi32>, index, index, index, index) -> tensor<?x64xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%n = ub.poison : memref<?x?xi32>
%i = ub.poison : index
// expected-error @below {{'tile.load_pages' keeps the head dimension 64, got tensor<?x32xf32>}}
%t = "tile.load_pages"(%m, %n, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, memref<?x?xi32>, index, index, index, index) -> tensor<?x32xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%t = ub.poison : tensor<?x?x64xf32>
%i = ub.poison : index
// expected-error @below {{'tile.store' writes a tile of rank 1 or 2, got tensor<?x?x64xf32>}}
"tile.store"(%t, %m, %i, %i, %i, %i) : (tensor<?x?x64xf32>, memref<?x?x?x64xf32>, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%t = ub.poison : tensor<?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.store' writes to a memref of rank 3, got memref<?x?x?x64xf32>}}
"tile.store"(%t, %m, %i, %i, %i, %i) : (tensor<?xf32>, memref<?x?x?x64xf32>, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%t = ub.poison : tensor<?x32xf32>
%i = ub.poison : index
// expected-error @below {{'tile.store' keeps the head dimension 64, got tensor<?x32xf32>}}
"tile.store"(%t, %m, %i, %i, %i, %i) : (tensor<?x32xf32>, memref<?x?x?x64xf32>, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%t = ub.poison : tensor<?x64xf16>
%i = ub.poison : index
// expected-error @below {{'tile.store' keeps the element type f32, got tensor<?x64xf16>}}
"tile.store"(%t, %m, %i, %i, %i, %i) : (tensor<?x64xf16>, memref<?x?x?x64xf32>, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?x64xf32>
%n = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'tile.gather' reads a rank-4 memref [B, H, S, D], got memref<?x64xf32>}}
%t = "tile.gather"(%m, %i, %i, %n, %i, %i) : (memref<?x64xf32>, index, index, memref<?xi32>, index, index) -> tensor<?x64xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%n = ub.poison : memref<?xi64>
%i = ub.poison : index
// expected-error @below {{'tile.gather' takes `rows` as a rank-1 memref of i32, got memref<?xi64>}}
%t = "tile.gather"(%m, %i, %i, %n, %i, %i) : (memref<?x?x?x64xf32>, index, index, memref<?xi64>, index, index) -> tensor<?x64xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%n = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'tile.gather' makes a rank-2 tile with as many rows as are named, got tensor<4x64xf32>}}
%t = "tile.gather"(%m, %i, %i, %n, %i, %i) : (memref<?x?x?x64xf32>, index, index, memref<?xi32>, index, index) -> tensor<4x64xf32>

// -----

%m = ub.poison : memref<?x?x?x64xf32>
%n = ub.poison : memref<?xi32>
%i = ub.poison : index
// expected-error @below {{'tile.gather' keeps the rows of memref<?x?x?x64xf32>, got tensor<?x64xf16>}}
%t = "tile.gather"(%m, %i, %i, %n, %i, %i) : (memref<?x?x?x64xf32>, index, index, memref<?xi32>, index, index) -> tensor<?x64xf16>
