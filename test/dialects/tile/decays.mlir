// What decays of channels make of a chunk: rows from 3 on are absent.
// RUN: attn-opt %s --split-input-file --verify-diagnostics | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK:       "tile.decay_channels"(%{{.*}}) {reverse = false} : (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf16>, tensor<8xf32>)
func.func @forward(%q: tensor<4x8xf16>, %k: tensor<4x8xf16>, %g: tensor<4x8xf32>) {
  %count = arith.constant 3 : index
  %leaving, %entering, %pairs, %carry = "tile.decay_channels"(%q, %k, %g, %count) {reverse = false} : (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf16>, tensor<8xf32>)
  return
}

// -----

func.func @direction(%q: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_channels' takes `reverse` as true or false, got 1 : i64}}
  %r:4 = "tile.decay_channels"(%q, %q, %g, %count) {reverse = 1 : i64} : (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf16>, tensor<8xf32>)
  return
}

// -----

func.func @tiles(%q: tensor<4x8xf16>, %k: tensor<4x4xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_channels' takes q and k as tiles of one static type, got tensor<4x8xf16> and tensor<4x4xf16>}}
  %r:4 = "tile.decay_channels"(%q, %k, %g, %count) {reverse = true} : (tensor<4x8xf16>, tensor<4x4xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf16>, tensor<8xf32>)
  return
}

// -----

func.func @decays(%q: tensor<4x8xf16>, %g: tensor<4xf32>, %count: index) {
  // expected-error @below {{'tile.decay_channels' takes decays of f32 or f64 for every element of tensor<4x8xf16>, got tensor<4xf32>}}
  %r:4 = "tile.decay_channels"(%q, %q, %g, %count) {reverse = true} : (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf16>, tensor<8xf32>)
  return
}

// -----

func.func @results(%q: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_channels' makes tiles of (4x8xf16, 4x8xf16, 4x4xf16, 8xf32), got (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf32>, tensor<8xf32>)}}
  %r:4 = "tile.decay_channels"(%q, %q, %g, %count) {reverse = true} : (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf16>, tensor<4x8xf16>, tensor<4x4xf32>, tensor<8xf32>)
  return
}

// -----

// The same for channels of v: what other positions give, rows with each position's own, what enters the state, and what is left of it.

// CHECK-LABEL: func.func @values
// CHECK:       "tile.decay_values"(%{{.*}}) {reverse = true} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
func.func @values(%a: tensor<4x4xf32>, %o: tensor<4x8xf32>, %v: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = true} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @values_direction(%a: tensor<4x4xf32>, %o: tensor<4x8xf32>, %v: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_values' takes `reverse` as true or false, got 1 : i64}}
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = 1 : i64} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @values_tile(%a: tensor<4x4xf32>, %o: tensor<4x8xf32>, %v: tensor<?x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_values' takes v as a tile of two static dimensions, got tensor<?x8xf16>}}
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = true} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<?x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @values_decays(%a: tensor<4x4xf32>, %o: tensor<4x8xf32>, %v: tensor<4x8xf16>, %g: tensor<4xf32>, %count: index) {
  // expected-error @below {{'tile.decay_values' takes decays of f32 or f64 for every element of tensor<4x8xf16>, got tensor<4xf32>}}
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = true} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @values_scores(%a: tensor<4x8xf32>, %o: tensor<4x8xf32>, %v: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_values' takes scores 4x4 and what is outside, like tensor<4x8xf32>, got tensor<4x8xf32> and tensor<4x8xf32>}}
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = true} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @values_results(%a: tensor<4x4xf32>, %o: tensor<4x8xf32>, %v: tensor<4x8xf16>, %g: tensor<4x8xf32>, %count: index) {
  // expected-error @below {{'tile.decay_values' makes three tiles like tensor<4x8xf32> and 8 factors, got (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<8xf32>)}}
  %r:4 = "tile.decay_values"(%a, %o, %v, %g, %count) {reverse = true} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<4x8xf32>, index) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf16>, tensor<8xf32>)
  return
}
