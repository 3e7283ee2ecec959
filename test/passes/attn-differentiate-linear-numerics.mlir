// Gradients agree with differences of the function, and stay the same in chunks: decays of heads, positions, key channels; states; offsets.
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/simple-gla.mlir %inputs/linear/retention.mlir %inputs/linear/gla.mlir %inputs/linear/varlen.mlir %inputs/linear/half.mlir --q-len 11 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s
// CHECK-COUNT-6: PASS

// Factors of rows, with products that are multiplied by them afterwards, and with those that cannot be.
// RUN: attn-run %inputs/linear/row-factors.mlir --q-len 11 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=ROWS
// RUN: attn-run %inputs/linear/row-factors.mlir --q-len 11 -p 'attn-differentiate{crossing=true interval=4},attn-simplify,attn-chunk-rewrite' | FileCheck %s --check-prefix=ROWS
// ROWS: PASS

// In bf16, where gradients of what factors of rows read are made of products (the evaluator rounds nothing).
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/row-factors.mlir > %t.rows
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/mamba2.mlir > %t.mamba2
// RUN: attn-run %t.rows %t.mamba2 --q-len 11 -p 'attn-differentiate{interval=4},attn-split-sequences{segment=4},attn-simplify,attn-outline,attn-chunk-rewrite{chunk=2}' | FileCheck %s --check-prefix=BF16
// RUN: attn-run %t.rows --q-len 11 --wrt=arg4 -p 'attn-differentiate{wrt=arg4}' | FileCheck %s --check-prefix=ROWS
// BF16-COUNT-2: PASS
