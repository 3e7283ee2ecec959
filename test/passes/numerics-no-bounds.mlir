// Without bounds every block is masked element by element; blocks of one row or key are as right as any.
// RUN: attn-run %inputs/*.mlir -p 'attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=8 block-kv=16}' --seed 1 --q-len 19 --kv-len 37 | FileCheck %s
// RUN: attn-run %inputs/entropy.mlir %inputs/sink.mlir -p 'attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=1 block-kv=1}' --q-len 5 --kv-len 7 | FileCheck %s

// CHECK:     entropy.mlir:
// CHECK:     PASS
// CHECK:     sink.mlir:
// CHECK:     PASS
// CHECK-NOT: FAIL
