// The chunked form gives what the recurrence gives: chunks of one position, several with a rest, more than there are positions.
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/skip.mlir %inputs/linear/gla.mlir %inputs/linear/varlen-states.mlir %inputs/linear/retention.mlir --q-len 21 --after-each -p 'attn-simplify,attn-chunk-rewrite{chunk=1},attn-simplify,canonicalize,cse' | FileCheck %s
// RUN: attn-run %inputs/linear/simple-gla.mlir %inputs/linear/backward-scan.mlir %inputs/linear/value-channels.mlir %inputs/linear/varlen-states.mlir %inputs/linear/gla.mlir %inputs/linear/diagonal-terms.mlir --q-len 41 -p 'attn-chunk-rewrite{chunk=16},cse' | FileCheck %s
// RUN: attn-run %inputs/linear/half.mlir %inputs/linear/retention.mlir %inputs/linear/mamba2.mlir -p 'attn-chunk-rewrite' | FileCheck %s
// CHECK-COUNT-3: PASS

// As kernels, too.
// RUN: attn-run %inputs/linear/mamba2.mlir %inputs/linear/skip.mlir %inputs/linear/gla.mlir %inputs/linear/varlen-states.mlir --q-len 21 --after-each -p 'attn-chunk-rewrite{chunk=16},attn-tile' | FileCheck %s
// RUN: attn-run %inputs/linear/backward-scan.mlir %inputs/linear/value-channels.mlir %inputs/linear/simple-gla.mlir --q-len 37 --after-each -p 'attn-chunk-rewrite{chunk=8},attn-tile' | FileCheck %s
