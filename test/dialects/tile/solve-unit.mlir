// Systems of a unit triangle.
// RUN: attn-opt %s --split-input-file --verify-diagnostics | FileCheck %s

// CHECK: "tile.solve_unit"(%{{.*}}, %{{.*}}) {upper = true} : (tensor<16x16xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
func.func @f(%a: tensor<16x16xf32>, %b: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %x = "tile.solve_unit"(%a, %b) {upper = true} : (tensor<16x16xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %x : tensor<16x8xf32>
}

// -----

func.func @f(%a: tensor<16x16xf32>, %b: tensor<16x8xf32>) {
  // expected-error @below {{'tile.solve_unit' takes `upper` as true or false, got 1 : i64}}
  %x = "tile.solve_unit"(%a, %b) {upper = 1 : i64} : (tensor<16x16xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return
}

// -----

func.func @f(%a: tensor<16x16xf32>, %b: tensor<16x8xf32>) {
  // expected-error @below {{'tile.solve_unit' makes a tile like b, of rank 2 and f32 or f64, got tensor<16x8xf32> and tensor<8x8xf32>}}
  %x = "tile.solve_unit"(%a, %b) {upper = false} : (tensor<16x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return
}

// -----

func.func @f(%a: tensor<8x8xf32>, %b: tensor<16x8xf32>) {
  // expected-error @below {{'tile.solve_unit' takes a as 16 x 16 of f32, got tensor<8x8xf32>}}
  %x = "tile.solve_unit"(%a, %b) {upper = false} : (tensor<8x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return
}
