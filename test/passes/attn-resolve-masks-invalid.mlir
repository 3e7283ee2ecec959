// RUN: not attn-opt %S/../Inputs/alibi-causal-softmax.mlir -p 'attn-resolve-masks{cuts=3}' 2>&1 | FileCheck %s

// CHECK: error: attn-resolve-masks cuts a block 0 to 2 times, got cuts=3
