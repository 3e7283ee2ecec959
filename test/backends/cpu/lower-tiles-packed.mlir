// Programs of packed sequences come in the order of the list of work, which has the longest first; others from the last block on.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'cpu-kernel,cpu-lower-tiles' | FileCheck %s
// RUN: attn-opt %inputs/causal-bottom-right.mlir -p 'cpu-kernel,cpu-lower-tiles' | FileCheck %s --check-prefix=BLOCKS

// CHECK:       scf.while
// CHECK:         llvm.atomicrmw add
// CHECK:       ^bb0(%[[PROGRAM:[a-z0-9]+]]: i64):
// CHECK:         arith.remui %[[PROGRAM]]
// CHECK:         arith.remui
// CHECK-NEXT:    arith.index_cast
// CHECK-NOT:     arith.subi
// CHECK:         llvm.load %{{.*}} : !llvm.ptr -> i32

// BLOCKS:      scf.while
// BLOCKS:      ^bb0(%[[PROGRAM:[a-z0-9]+]]: i64):
// BLOCKS:        arith.remui %[[PROGRAM]]
// BLOCKS:        %[[BLOCK:.+]] = arith.remui
// BLOCKS:        arith.subi %{{.+}}, %[[BLOCK]]
