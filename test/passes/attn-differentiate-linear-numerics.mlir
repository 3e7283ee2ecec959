// Gradients agree with differences of the function, and stay the same in chunks: decays of heads, positions, key channels; states; offsets.
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/simple-gla.mlir %inputs/linear/retention.mlir %inputs/linear/gla.mlir %inputs/linear/varlen.mlir %inputs/linear/half.mlir --q-len 11 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s
// CHECK-COUNT-6: PASS

// Factors of rows, with products that are multiplied by them afterwards, and with those that cannot be.
// RUN: attn-run %inputs/linear/row-factors.mlir --q-len 11 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=ROWS
// RUN: attn-run %inputs/linear/row-factors.mlir --q-len 11 -p 'attn-differentiate{crossing=true interval=4},attn-simplify,attn-chunk-rewrite' | FileCheck %s --check-prefix=ROWS
// ROWS: PASS
