// A cache in pages has no gradients.
// RUN: not attn-opt %inputs/paged-causal.mlir -p 'attn-differentiate' 2>&1 | FileCheck %s
// CHECK: attn-differentiate: keys in pages ('attn.pages') have no derivatives

// The forward pass of a backward by other kernels is there.
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-differentiate{functions=fwd only=true}' | FileCheck %s --check-prefix=FORWARD
// FORWARD: func.func @attention_fwd(
// FORWARD: "attn.pages"
