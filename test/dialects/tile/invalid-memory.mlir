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
// expected-error @below {{'tile.load' keeps the element type f32, got tensor<?x64xf16>}}
%t = "tile.load"(%m, %i, %i, %i, %i) : (memref<?x?x?x64xf32>, index, index, index, index) -> tensor<?x64xf16>

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
