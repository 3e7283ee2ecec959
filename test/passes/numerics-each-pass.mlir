// Every pass keeps the meaning of every example program, checked after each one, at odd sizes.
// RUN: attn-run %inputs/*.mlir --after-each -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=8}' | FileCheck %s

// CHECK:     alibi-absolute.mlir:
// CHECK:     PASS
// CHECK:     empty-rows.mlir:
// CHECK:     PASS
// CHECK:     std-temperature.mlir:
// CHECK:     PASS
// CHECK-NOT: FAIL
