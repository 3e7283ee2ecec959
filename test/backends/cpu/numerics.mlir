// The compiled kernel of every example program agrees with its definition, at sizes that fill no block.
// REQUIRES: torch
// RUN: export ATTN_MLIR_CACHE=off
// RUN: attn-run %inputs/*.mlir --device cpu --q-len 70,1 --kv-len 83,90 --heads 6 --kv-heads 2 --seed 1 | FileCheck %s
// RUN: attn-run %inputs/softmax-f16.mlir --device cpu | FileCheck %s --check-prefix=HALF

// CHECK:      alibi-absolute.mlir:
// CHECK-NEXT: Sq=70 Skv=83
// CHECK-NEXT: Sq=1 Skv=90
// CHECK-NEXT: PASS
// CHECK:     std-temperature.mlir:
// CHECK:     PASS
// CHECK-NOT: FAIL

// HALF:      Sq=40 Skv=40
// HALF:      PASS
