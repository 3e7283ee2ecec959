// A diagnostic without a place in the file gives the name that the op's location carries.
// RUN: not attn-opt %s 2>&1 | FileCheck %s

// CHECK: locations.mlir: error: 'attn.row' belongs inside attn.attention (at "the row")
"attn.row"() ({}) : () -> () loc("the row")
