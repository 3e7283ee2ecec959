// RUN: attn-opt %s -p 'attn-chunk-rewrite{chunk=48}' --verify-diagnostics
// RUN: not attn-opt %s -p 'attn-chunk-rewrite{chunk=0}' 2>&1 | FileCheck %s

// CHECK: attn-chunk-rewrite: chunk must be positive, got 0

func.func @states_within_chunks(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) {
  // expected-error @below {{attn-chunk-rewrite: states every 64 positions are not at the ends of chunks of 48}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return %o, %states : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
}
