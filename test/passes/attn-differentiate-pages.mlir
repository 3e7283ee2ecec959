// A cache in pages has no gradients.
// RUN: not attn-opt %inputs/paged-causal.mlir -p 'attn-differentiate' 2>&1 | FileCheck %s
// CHECK: attn-differentiate: keys in pages ('attn.pages') have no derivatives
