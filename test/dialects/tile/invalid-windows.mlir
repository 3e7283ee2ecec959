// What tile.load_window, tile.band, tile.add_window and tile.add_band demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%m = ub.poison : tensor<4xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load_window' has its window in a memref, got tensor<4xf32>}}
%w = "tile.load_window"(%m, %i, %i, %i, %i) {row_steps = array<i64: 1, 0>, column_steps = array<i64: 0, 1>} : (tensor<4xf32>, index, index, index, index) -> tensor<16x?xf32>

// -----

%m = ub.poison : memref<?x?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load_window' takes `row_steps` and `column_steps` as arrays of i64, got 1 : i64 and array<i64: 0, 1>}}
%w = "tile.load_window"(%m, %i, %i, %i, %i) {row_steps = 1 : i64, column_steps = array<i64: 0, 1>} : (memref<?x?xf32>, index, index, index, index) -> tensor<16x?xf32>

// -----

%m = ub.poison : memref<?x?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load_window' takes an offset and two steps for each of 2 dimensions, got [1, 2, 2]}}
%w = "tile.load_window"(%m, %i, %i, %i) {row_steps = array<i64: 1, 0>, column_steps = array<i64: 0, 1>} : (memref<?x?xf32>, index, index, index) -> tensor<16x?xf32>

// -----

%m = ub.poison : memref<?x?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load_window' makes a rank-2 tile with a static number of rows, got tensor<?x?xf32>}}
%w = "tile.load_window"(%m, %i, %i, %i, %i) {row_steps = array<i64: 1, 0>, column_steps = array<i64: 0, 1>} : (memref<?x?xf32>, index, index, index, index) -> tensor<?x?xf32>

// -----

%m = ub.poison : memref<?x?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.load_window' keeps the element type f32, got tensor<16x?xf16>}}
%w = "tile.load_window"(%m, %i, %i, %i, %i) {row_steps = array<i64: 1, 0>, column_steps = array<i64: 0, 1>} : (memref<?x?xf32>, index, index, index, index) -> tensor<16x?xf16>

// -----

%n = ub.poison : index
// expected-error @below {{'tile.band' makes a rank-2 tile with a static number of rows, got tensor<16xf32>}}
%b = "tile.band"(%n, %n) ({
^bb0(%i: index, %j: index):
  %x = ub.poison : f32
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) : (index, index) -> tensor<16xf32>

// -----

%n = ub.poison : index
// expected-error @below {{'tile.band' region takes 2 indices, got (index)}}
%b = "tile.band"(%n, %n) ({
^bb0(%i: index):
  %x = ub.poison : f32
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) : (index, index) -> tensor<16x?xf32>

// -----

%n = ub.poison : index
// expected-error @below {{'tile.band' ends in 'tile.yield'}}
%b = "tile.band"(%n, %n) ({
^bb0(%i: index, %j: index):
  %x = ub.poison : f32
  "tile.scatter_yield"(%x, %x) : (f32, f32) -> ()
}) : (index, index) -> tensor<16x?xf32>

// -----

%n = ub.poison : index
// expected-error @below {{'tile.band' yields one f16, got (f32)}}
%b = "tile.band"(%n, %n) ({
^bb0(%i: index, %j: index):
  %x = ub.poison : f32
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) : (index, index) -> tensor<16x?xf16>

// -----

%t = ub.poison : tensor<?x?xf32>
%m = ub.poison : memref<?xf32>
%i = ub.poison : index
// expected-error @below {{'tile.add_window' adds a rank-2 tile with a static number of rows, got tensor<?x?xf32>}}
"tile.add_window"(%t, %m, %i, %i, %i) {row_steps = array<i64: 1>, column_steps = array<i64: 1>} : (tensor<?x?xf32>, memref<?xf32>, index, index, index) -> ()

// -----

%t = ub.poison : tensor<16x?xf16>
%m = ub.poison : memref<?xf16>
%i = ub.poison : index
// expected-error @below {{'tile.add_window' adds f32 or f64 to elements of that type, got tensor<16x?xf16> and memref<?xf16>}}
"tile.add_window"(%t, %m, %i, %i, %i) {row_steps = array<i64: 1>, column_steps = array<i64: 1>} : (tensor<16x?xf16>, memref<?xf16>, index, index, index) -> ()

// -----

%t = ub.poison : tensor<16x?xf32>
%m = ub.poison : tensor<4xf32>
%n = ub.poison : index
// expected-error @below {{'tile.add_band' adds to a memref, got tensor<4xf32>}}
"tile.add_band"(%t, %m, %n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%i, %j) {operandSegmentSizes = array<i32: 2, 0>} : (index, index) -> ()
}) : (tensor<16x?xf32>, tensor<4xf32>, index, index) -> ()

// -----

%t = ub.poison : tensor<16x?xf32>
%m = ub.poison : memref<?xf32>
%n = ub.poison : index
// expected-error @below {{'tile.add_band' yields 1 indices, got (index, index)}}
"tile.add_band"(%t, %m, %n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%i, %j) {operandSegmentSizes = array<i32: 2, 0>} : (index, index) -> ()
}) : (tensor<16x?xf32>, memref<?xf32>, index, index) -> ()
