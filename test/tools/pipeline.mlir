// Project and upstream passes mix in one pipeline, nested or not, and as flags in command-line order.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=32},canonicalize' | FileCheck %s
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'builtin.module(attn-tile{block-q=32},builtin.module(canonicalize))' | FileCheck %s
// RUN: attn-opt --attn-tile=block-q=32 --canonicalize %inputs/online-causal-softmax.mlir | FileCheck %s
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir -p 'attn-pipeline,func.func(cse)' | FileCheck %s --check-prefix=NAMED
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir --attn-pipeline --canonicalize | FileCheck %s --check-prefix=NAMED
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p '' | FileCheck %s --check-prefix=NONE

// CHECK-LABEL: func.func @attention
// CHECK-SAME:  block_q = 32 : i64
// CHECK-NOT:   attn.online
// CHECK:       "tile.program_id"() {axis = 0 : i64}
// NONE:        "attn.online"

// NAMED-LABEL: func.func @attention
// NAMED-NOT:   attn.attention
// NAMED:       "tile.dot_rescale"
