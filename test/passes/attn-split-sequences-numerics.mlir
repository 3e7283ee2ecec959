// Segments give what whole sequences give: values and gradients, both directions, states, products, decays of every kind.
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/simple-gla.mlir %inputs/linear/retention.mlir %inputs/linear/gla.mlir %inputs/linear/half.mlir %inputs/linear/value-channels.mlir %inputs/linear/backward-scan.mlir %inputs/linear/diagonal-terms.mlir --q-len 41 -p 'attn-split-sequences{segment=16},func.func(cse),attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=VALUES
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/simple-gla.mlir %inputs/linear/retention.mlir %inputs/linear/gla.mlir --q-len 11 -p 'attn-differentiate{interval=4},attn-split-sequences{segment=4},func.func(cse),attn-simplify,attn-chunk-rewrite{chunk=2}' | FileCheck %s --check-prefix=GRADIENTS
// VALUES-COUNT-8: PASS
// GRADIENTS-COUNT-4: PASS
