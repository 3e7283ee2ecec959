// What is printed can be read again: the recurrence, and its chunked form with all pieces.
// RUN: attn-opt %inputs/linear/varlen-states.mlir | attn-opt | FileCheck %s --check-prefixes=CHECK,RECURRENCE
// RUN: attn-opt %inputs/linear/varlen-states.mlir -p attn-chunk-rewrite{chunk=16} | attn-opt | FileCheck %s --check-prefixes=CHECK,CHUNK
// RUN: attn-opt %inputs/linear/diagonal-terms.mlir | attn-opt | FileCheck %s --check-prefixes=OWN
// RUN: attn-opt %inputs/linear/diagonal-terms.mlir -p attn-chunk-rewrite{chunk=16} | attn-opt | FileCheck %s --check-prefixes=OWN
// RUN: attn-opt %inputs/linear/skip.mlir | attn-opt | FileCheck %s --check-prefix=SKIP

// RECURRENCE: "attn.linear_attention"
// CHUNK:      "attn.chunk"
// CHUNK:        "attn.decay"
// CHUNK:        "attn.chunk_decay"
// CHUNK:        "attn.input_decay"
// CHUNK:        "attn.output_decay"
// CHUNK:        "attn.decay_mask"
// CHECK:      operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 1>, outputs = ["final_state", "states"], resultSegmentSizes = array<i32: 1, 1, 0, 1, 0>, state = "kv"

// SKIP:       "attn.skip"() ({
// SKIP-NEXT:  ^bb0(%{{.*}}: index, %{{.*}}: index, %{{.*}}: index):

// OWN:        "attn.result"
// OWN:        outputs = ["products", "states", "diagonal"], resultSegmentSizes = array<i32: 1, 0, 1, 1, 1>
