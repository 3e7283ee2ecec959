// What targets want of numbers stands on functions before tiling: attributes that differ from the defaults, of functions with ops to tile.
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'cpu-numerics' | FileCheck %s --check-prefix=CPU
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'nvidia-numerics' | FileCheck %s --check-prefix=NVIDIA
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'amd-numerics' | FileCheck %s --check-prefix=AMD
// RUN: sed 's/func.func @attention\(.*\) {$/func.func @attention\1 attributes {tile.choices = {arch = "gfx942"}} {/' %inputs/causal-softmax.mlir > %t
// RUN: attn-opt %t -p 'amd-numerics' | FileCheck %s --check-prefix=MI300X
// RUN: attn-opt %s -p 'attn-tile-sums' --split-input-file --verify-diagnostics
// CPU:    attributes {tile.numerics = {prefix = "f64", slots = true, sub_chunk = 4 : i64, wide_decay = true, widen = true}}
// NVIDIA: attributes {tile.numerics = {prefix = "wider", sub_chunk = 4 : i64, sub_chunk_keys = 1 : i64}}
// MI300X: tile.numerics = {flushing = true, narrow = "nuz", prefix = "wider"}
// AMD:    attributes {tile.numerics = {flushing = true, narrow = "bf16", prefix = "wider"}}

// expected-error @below {{attn-tile-sums: 'tile.numerics' takes `prefix` as f32, f64 or wider, got 'f16'}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {prefix = "f16"}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{attn-tile-sums: 'tile.numerics' `sub_chunk` must be a power of two, got 12}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {sub_chunk = 12 : i64}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{attn-tile-sums: 'tile.numerics' `sub_chunk_keys` must be 0 or a power of two, got 3}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {sub_chunk_keys = 3 : i64}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{'tile.numerics' takes prefix, sub_chunk, sub_chunk_keys, widen, flushing, wide_decay, slots, narrow, got widen = 1}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {widen = 1 : i64}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{'tile.numerics' takes prefix, sub_chunk, sub_chunk_keys, widen, flushing, wide_decay, slots, narrow, got precise = true}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {precise = true}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{attn-tile-sums: 'tile.numerics' must be a dictionary, got "f64"}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = "f64"} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}

// -----

// expected-error @below {{got exact_carry = true; 'exact_carry' is called 'wide_decay' now}}
func.func @dot(%a: tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32> attributes {tile.numerics = {exact_carry = true}} {
  %0 = "attn.row_dot"(%a, %a) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}
