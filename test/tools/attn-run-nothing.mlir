// A file without anything to run is an error that tells what was expected, and what is there.
// RUN: not attn-run %s 2>&1 | FileCheck %s
// RUN: echo 'module {}' | not attn-run - 2>&1 | FileCheck %s --check-prefix=EMPTY
// RUN: not attn-run %inputs/causal-softmax.mlir --capture-size -1 2>&1 | FileCheck %s --check-prefix=SIZE
// RUN: echo 'func.func @k(%%x: f32) attributes {tile.kernel = {block_q = 0}} { return }' | not attn-run - 2>&1 | FileCheck %s --check-prefix=KERNEL

// CHECK:  attn-run-nothing.mlir:{{[0-9]+}}:{{[0-9]+}}: error: nothing to run: expected @attention, a derivative such as @attention_bwd
// CHECK-SAME: found @f, @g
// EMPTY:  <stdin>:1:1: error: nothing to run: {{.*}}found none
// SIZE:   attn-run: error: --capture-size must not be negative, got -1
// KERNEL: <stdin>:1:1: error: `tile.kernel` of this function has a positive `block_q`, got 0
func.func @f(%x: f32) { return }
func.func @g(%x: f32) { return }
