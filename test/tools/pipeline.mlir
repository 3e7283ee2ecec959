// Project and upstream passes mix in one pipeline, nested or not, and as flags in command-line order.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=32},canonicalize' | FileCheck %s
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'builtin.module(attn-tile{block-q=32},builtin.module(canonicalize))' | FileCheck %s
// RUN: attn-opt --attn-tile=block-q=32 --canonicalize %inputs/online-causal-softmax.mlir | FileCheck %s
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p '' | FileCheck %s --check-prefix=NONE

// CHECK-LABEL: func.func @attention
// CHECK-SAME:  block_q = 32 : i64
// CHECK-NOT:   attn.online
// CHECK:       "tile.program_id"() {axis = 0 : i64}
// NONE:        "attn.online"
