// What tile.accumulate and tile.scatter_add demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%w = ub.poison : tensor<16xf32>
%k = ub.poison : tensor<?x8xf32>
%m = ub.poison : memref<?x?x?x?x8xf32>
%i = ub.poison : index
// expected-error @below {{'tile.accumulate' sums products of rank-2 tiles, got tensor<16xf32> and tensor<?x8xf32>}}
"tile.accumulate"(%w, %k, %m, %i, %i, %i, %i, %i) : (tensor<16xf32>, tensor<?x8xf32>, memref<?x?x?x?x8xf32>, index, index, index, index, index) -> ()

// -----

%w = ub.poison : tensor<16x?xf32>
%k = ub.poison : tensor<?x8xf16>
%m = ub.poison : memref<?x?x?x?x8xf32>
%i = ub.poison : index
// expected-error @below {{'tile.accumulate' multiplies equal element types, got tensor<16x?xf32> and tensor<?x8xf16>}}
"tile.accumulate"(%w, %k, %m, %i, %i, %i, %i, %i) : (tensor<16x?xf32>, tensor<?x8xf16>, memref<?x?x?x?x8xf32>, index, index, index, index, index) -> ()

// -----

%w = ub.poison : tensor<16x?xf32>
%k = ub.poison : tensor<?x8xf32>
%m = ub.poison : memref<?x?x?x8xf32>
%i = ub.poison : index
// expected-error @below {{'tile.accumulate' adds to a memref of rank 5, got memref<?x?x?x8xf32>}}
"tile.accumulate"(%w, %k, %m, %i, %i, %i, %i, %i) : (tensor<16x?xf32>, tensor<?x8xf32>, memref<?x?x?x8xf32>, index, index, index, index, index) -> ()

// -----

%w = ub.poison : tensor<16x?xf32>
%k = ub.poison : tensor<?x8xf32>
%m = ub.poison : memref<?x?x?x?x4xf32>
%i = ub.poison : index
// expected-error @below {{'tile.accumulate' keeps the head dimension 4, got tensor<?x8xf32>}}
"tile.accumulate"(%w, %k, %m, %i, %i, %i, %i, %i) : (tensor<16x?xf32>, tensor<?x8xf32>, memref<?x?x?x?x4xf32>, index, index, index, index, index) -> ()

// -----

%w = ub.poison : tensor<16x?xf16>
%k = ub.poison : tensor<?x8xf16>
%m = ub.poison : memref<?x?x?x?x8xf16>
%i = ub.poison : index
// expected-error @below {{'tile.accumulate' adds to f32 or f64, got memref<?x?x?x?x8xf16>}}
"tile.accumulate"(%w, %k, %m, %i, %i, %i, %i, %i) : (tensor<16x?xf16>, tensor<?x8xf16>, memref<?x?x?x?x8xf16>, index, index, index, index, index) -> ()

// -----

%m = ub.poison : memref<?xf16>
%n = ub.poison : index
// expected-error @below {{'tile.scatter_add' adds to a memref of f32 or f64, got memref<?xf16>}}
"tile.scatter_add"(%m, %n) ({
^bb0(%i: index):
  %x = ub.poison : f16
  %p = ub.poison : i1
  "tile.scatter_yield"(%x, %p, %i) : (f16, i1, index) -> ()
}) : (memref<?xf16>, index) -> ()

// -----

%m = ub.poison : memref<?xf32>
// expected-error @below {{'tile.scatter_add' runs over one or two extents, got 0}}
"tile.scatter_add"(%m) ({
  %i = ub.poison : index
  %x = ub.poison : f32
  %p = ub.poison : i1
  "tile.scatter_yield"(%x, %p, %i) : (f32, i1, index) -> ()
}) : (memref<?xf32>) -> ()

// -----

%m = ub.poison : memref<?xf32>
%n = ub.poison : index
// expected-error @below {{'tile.scatter_add' region has 2 indices, got (index)}}
"tile.scatter_add"(%m, %n, %n) ({
^bb0(%i: index):
  %x = ub.poison : f32
  %p = ub.poison : i1
  "tile.scatter_yield"(%x, %p, %i) : (f32, i1, index) -> ()
}) : (memref<?xf32>, index, index) -> ()

// -----

%m = ub.poison : memref<?xf32>
%n = ub.poison : index
// expected-error @below {{'tile.scatter_add' ends in 'tile.scatter_yield'}}
"tile.scatter_add"(%m, %n) ({
^bb0(%i: index):
  %x = ub.poison : f32
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) : (memref<?xf32>, index) -> ()

// -----

%m = ub.poison : memref<?xf32>
%n = ub.poison : index
// expected-error @below {{'tile.scatter_add' yields a value of f32 and an i1, got f64 and i1}}
"tile.scatter_add"(%m, %n) ({
^bb0(%i: index):
  %x = ub.poison : f64
  %p = ub.poison : i1
  "tile.scatter_yield"(%x, %p, %i) : (f64, i1, index) -> ()
}) : (memref<?xf32>, index) -> ()

// -----

%m = ub.poison : memref<?x?xf32>
%n = ub.poison : index
// expected-error @below {{'tile.scatter_add' yields 2 indices, got 1}}
"tile.scatter_add"(%m, %n) ({
^bb0(%i: index):
  %x = ub.poison : f32
  %p = ub.poison : i1
  "tile.scatter_yield"(%x, %p, %i) : (f32, i1, index) -> ()
}) : (memref<?x?xf32>, index) -> ()
