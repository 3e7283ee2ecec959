// In-place updates of one tile under two names are refused.
// RUN: attn-opt %s -p 'tile-schedule{target=cpu}' --split-input-file --verify-diagnostics

func.func @carried(%n: index) attributes {tile.kernel = {block_q = 16 : i64, block_kv = 16 : i64}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %fill = "tile.fill"(%zero) : (f32) -> tensor<16x8xf32>
  // expected-error @below {{tile-schedule: two carried tiles start from one; each is updated in place and needs its own}}
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %fill, %b = %fill) -> (tensor<16x8xf32>, tensor<16x8xf32>) {
    scf.yield %a, %b : tensor<16x8xf32>, tensor<16x8xf32>
  }
  return
}

// -----

func.func @used_again() attributes {tile.kernel = {block_q = 16 : i64, block_kv = 16 : i64}} {
  %zero = arith.constant 0.0 : f32
  %a = "tile.fill"(%zero) : (f32) -> tensor<16x8xf32>
  %b = ub.poison : tensor<8x8xf32>
  %c = "tile.fill"(%zero) {accumulator = 1 : i64} : (f32) -> tensor<16x8xf32>
  // expected-error @below {{tile-schedule: an accumulator is updated in place, but its old value is used again}}
  %x = "tile.dot_add"(%c, %a, %b) {transpose_b = false} : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %y = "tile.dot_add"(%c, %a, %b) {transpose_b = false} : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  return
}
