// What matrix products and constants on tiles demand.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

%x = ub.poison : f32
// expected-error @below {{'tile.fill' makes a tile of static shape, got tensor<?x4xf32>}}
%t = "tile.fill"(%x) : (f32) -> tensor<?x4xf32>

// -----

%x = ub.poison : f32
// expected-error @below {{'tile.fill' fills with f32 a tile of that type, got tensor<4x4xf64>}}
%t = "tile.fill"(%x) : (f32) -> tensor<4x4xf64>

// -----

%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf32>
// expected-error @below {{'tile.dot' takes `transpose_b` as true or false, got 1 : i64}}
%r = "tile.dot"(%a, %b) {transpose_b = 1} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>

// -----

%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8xf32>
// expected-error @below {{'tile.dot' multiplies rank-2 tiles, got tensor<4x8xf32>, tensor<8xf32>, tensor<4x4xf32>}}
%r = "tile.dot"(%a, %b) {transpose_b = false} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x4xf32>

// -----

%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf32>
// expected-error @below {{'tile.dot' shapes do not fit: tensor<4x8xf32> times tensor<8x4xf32> transposed into tensor<4x4xf32>}}
%r = "tile.dot"(%a, %b) {transpose_b = true} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>

// -----

%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf16>
// expected-error @below {{'tile.dot' multiplies equal element types, got tensor<4x8xf32> and tensor<8x4xf16>}}
%r = "tile.dot"(%a, %b) {transpose_b = false} : (tensor<4x8xf32>, tensor<8x4xf16>) -> tensor<4x4xf32>

// -----

%a = ub.poison : tensor<4x8xf16>
%b = ub.poison : tensor<8x4xf16>
// expected-error @below {{'tile.dot' accumulates in f32 or f64, got tensor<4x4xf16>}}
%r = "tile.dot"(%a, %b) {transpose_b = false} : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>

// -----

%c = ub.poison : tensor<4x4xf32>
%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf32>
// expected-error @below {{'tile.dot_add' returns the accumulator's type tensor<4x4xf32>, got tensor<4x4xf64>}}
%r = "tile.dot_add"(%c, %a, %b) {transpose_b = false} : (tensor<4x4xf32>, tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf64>

// -----

%c = ub.poison : tensor<4x4xf32>
%s = ub.poison : tensor<4xf32>
%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf32>
// expected-error @below {{'tile.dot_rescale' returns the accumulator's type tensor<4x4xf32>, got tensor<4x4xf64>}}
%r = "tile.dot_rescale"(%c, %s, %a, %b) {transpose_b = false} : (tensor<4x4xf32>, tensor<4xf32>, tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf64>

// -----

%c = ub.poison : tensor<4x4xf32>
%s = ub.poison : tensor<8xf32>
%a = ub.poison : tensor<4x8xf32>
%b = ub.poison : tensor<8x4xf32>
// expected-error @below {{'tile.dot_rescale' scales each of 4 rows, got tensor<8xf32>}}
%r = "tile.dot_rescale"(%c, %s, %a, %b) {transpose_b = false} : (tensor<4x4xf32>, tensor<8xf32>, tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>

// -----

func.func @dot(%a: tensor<16x4xf32>, %b: tensor<16x8xf32>) {
  // expected-error @below {{'tile.dot' takes `transpose_a` as true or false, got 1 : i64}}
  %c = "tile.dot"(%a, %b) {transpose_a = 1 : i64, transpose_b = false} : (tensor<16x4xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

func.func @dot(%a: tensor<16x4xf32>, %b: tensor<16x8xf32>) {
  // expected-error @below {{'tile.dot' shapes do not fit: tensor<16x4xf32> transposed times tensor<16x8xf32> into tensor<16x8xf32>}}
  %c = "tile.dot"(%a, %b) {transpose_a = true, transpose_b = false} : (tensor<16x4xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return
}

// -----

func.func @cumsum(%g: tensor<16xf32>) {
  // expected-error @below {{'tile.cumsum' takes `reverse` as true or false, got 0 : i64}}
  %sums = "tile.cumsum"(%g) {reverse = 0 : i64} : (tensor<16xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @cumsum(%g: tensor<16xf16>) {
  // expected-error @below {{'tile.cumsum' sums a tile of f32 or f64 into one of its type, got tensor<16xf16>}}
  %sums = "tile.cumsum"(%g) {reverse = false} : (tensor<16xf16>) -> tensor<16xf16>
  return
}
