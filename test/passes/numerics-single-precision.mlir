// The same in f32, whose constants passes fold with rounding, with upstream passes in between.
// RUN: attn-run %inputs/*.mlir --keep-types --tolerance 1e-5 --seed 2 --ints 0:3 --q-len 21 --kv-len 21 -p 'attn-simplify,canonicalize,attn-resolve-masks,cse,attn-online-rewrite,canonicalize,cse,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=16},canonicalize,loop-invariant-code-motion,cse' | FileCheck %s

// CHECK:     alibi-absolute.mlir:
// CHECK:     PASS
// CHECK:     std-temperature.mlir:
// CHECK:     PASS
// CHECK-NOT: FAIL
