// A pipeline is applied, and its result compared with the program as it was; kernels are run program by program.
// RUN: attn-run %inputs/online-causal-softmax.mlir -p 'canonicalize,attn-tile{block-q=8 block-kv=5}' --after-each | FileCheck %s
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=8 block-kv=16}' -o %t.mlir
// RUN: attn-run %t.mlir --against %inputs/causal-softmax.mlir | FileCheck %s
// RUN: attn-run %inputs/causal-softmax.mlir -p 'attn-resolve-masks,cse' --after-each | FileCheck %s

// CHECK:      B=2 Hq=4 Hkv=2 Sq=17 Skv=23  o: abs {{[0-9.]+}}e{{-1[4-9]|[+]00}} rel
// CHECK:      PASS
