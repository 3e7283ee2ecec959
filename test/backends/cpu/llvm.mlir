// The whole way down: nothing but the LLVM dialect is left.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=16 block-kv=16},tile-schedule{target=cpu},cpu-llvm' | FileCheck %s

// CHECK-NOT:     {{ (scf|vector|arith|math|memref|cf)\.}}
// CHECK:       llvm.func @attention(%{{.*}}: !llvm.ptr)
// CHECK:         llvm.intr.fmuladd
// CHECK-NOT:     {{ (scf|vector|arith|math|memref|cf)\.}}
// CHECK:         llvm.return
