// RUN: attn-opt %s --split-input-file --verify-diagnostics -p attn-differentiate
// RUN: not attn-opt %inputs/linear/gla.mlir -p 'attn-differentiate{functions=jvp}' 2>&1 | FileCheck %s --check-prefix=JVP
// RUN: not attn-opt %inputs/linear/gla.mlir -p 'attn-differentiate{functions=bwd2}' 2>&1 | FileCheck %s --check-prefix=SECOND
// RUN: not attn-opt %inputs/linear/gla.mlir -p 'attn-differentiate{interval=-1}' 2>&1 | FileCheck %s --check-prefix=INTERVAL

// INTERVAL: error: attn-differentiate: interval must not be negative, got -1
// JVP:    error: no derivative: the tangent of a linear attention is not derived; its gradients are
// SECOND: error: no derivative: second derivatives of a linear attention are not derived

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) {
  // expected-error @below {{attn-differentiate: differentiates o and final_state, not states}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return %o, %states : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-differentiate: differentiates decays of heads and of key channels, not of value channels}}
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "value", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      // expected-error @below {{attn-differentiate: an element of q, k, v or initial_state is read: pass the tensor once more, as a further argument}}
      %y = tensor.extract %q[%b, %h, %t, %d] : tensor<?x?x?x16xf32>
      %z = arith.mulf %x, %y : f32
      "attn.yield"(%z) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.decay"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      // expected-error @below {{no derivative: 'math.erfc' of a value that depends on the score has no derivative rule: make indices and integers of positions alone}}
      %y = math.erfc %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-differentiate: takes a function that returns just one linear attention of its arguments, the first three as q, k and v}}
  %o, %final_state = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-differentiate: differentiates what has no 'attn.result'}}
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %two = arith.constant 2.0 : f32
      %y = arith.mulf %x, %two : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
