// Runs a program at several odd sizes; an online program runs in several ways, which must agree.
// RUN: attn-run %inputs/alibi-causal-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/online-causal-softmax.mlir | FileCheck %s
// RUN: attn-run < %inputs/online-causal-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/online-causal-softmax.mlir --against %inputs/causal-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/online-causal-softmax.mlir --against %inputs/causal-softmax.mlir --block 3,4 --q-block 2 --split 3 | FileCheck %s
// RUN: attn-run %inputs/causal-softmax.mlir --batch 1 --heads 6 --kv-heads 3 --q-len 5 --kv-len 9 | FileCheck %s --check-prefix=SIZES

// CHECK:      B=2 Hq=4 Hkv=2 Sq=1 Skv=1  o: abs {{.*}} rel {{.*}}  lse: abs
// CHECK-NEXT: B=2 Hq=4 Hkv=2 Sq=17 Skv=23  o: abs
// CHECK-NEXT: B=2 Hq=4 Hkv=2 Sq=23 Skv=17  o: abs
// CHECK-NEXT: B=2 Hq=4 Hkv=2 Sq=40 Skv=40  o: abs
// CHECK-NEXT: PASS

// SIZES-NOT:  Sq=17
// SIZES:      B=1 Hq=6 Hkv=3 Sq=5 Skv=9  o: abs 0.0e+00
// SIZES-NEXT: PASS
