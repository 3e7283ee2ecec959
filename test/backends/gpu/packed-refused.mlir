// Packed sequences have no kernels on GPUs yet, and the schedule says so.
// RUN: not attn-translate %inputs/packed-causal.mlir --to cuda 2>&1 | FileCheck %s
// RUN: not attn-translate %inputs/packed-causal.mlir --to hip 2>&1 | FileCheck %s

// CHECK: error: tile-schedule: there are no kernels for packed sequences ('attn.sequences') on GPUs yet: they run on the CPU
