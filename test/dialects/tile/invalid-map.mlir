// What `tile.map` demands of its extents, results, region and terminator.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' takes one or two extents, got 3}}
%r:1 = "tile.map"(%n, %n, %n) ({
^bb0(%i: index, %j: index, %k: index):
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index, index) -> (tensor<4x4x4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' makes tiles of rank 1, as it has extents, got tensor<4x4xf32>}}
%r:1 = "tile.map"(%n) ({
^bb0(%i: index):
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> (tensor<4x4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' reduces by sum, max, min}}
%r:2 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%x, %x) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
}) {reductions = ["mean"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<4x4xf32>, tensor<4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' names 0 reductions but has 1 of them}}
%r:2 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%x, %x) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<4x4xf32>, tensor<4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' reduces along the second extent, but has only one}}
%r:2 = "tile.map"(%n) ({
^bb0(%i: index):
  "tile.yield"(%x, %x) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
}) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index) -> (tensor<4xf32>, tensor<4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' reduces to rank-1 tiles of f32 or f64, got tensor<4xi32>}}
%r:2 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%x, %x) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
}) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<4x4xf32>, tensor<4xi32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' region takes 2 indices, got (index, f32)}}
%r:1 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: f32):
  "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> (tensor<4x4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' ends in 'tile.yield'}}
%r:1 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "attn.yield"(%x) : (f32) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> (tensor<4x4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' yields (f32) for its tiles, got (index)}}
%r:1 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%c) {operandSegmentSizes = array<i32: 1, 0>} : (index) -> ()
}) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> (tensor<4x4xf32>)

// -----

%n = ub.poison : index
%x = ub.poison : f32
%c = ub.poison : index
// expected-error @below {{'tile.map' yields (f32) for its rows, got (index)}}
%r:2 = "tile.map"(%n, %n) ({
^bb0(%i: index, %j: index):
  "tile.yield"(%x, %c) {operandSegmentSizes = array<i32: 1, 1>} : (f32, index) -> ()
}) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<4x4xf32>, tensor<4xf32>)
