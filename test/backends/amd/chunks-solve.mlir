// The delta rule: waves have whole columns of what a system of a unit triangle gives; its 16 x 16 inverses are made in registers.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p amd-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %inputs/linear/gated-delta.mlir --to hip | FileCheck %s

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    tile.schedule = {arch = "gfx90a", emitter = "chunks"
// PLAN:         %[[U:.*]] = "tile.solve_unit"(%[[A:.*]], %{{.*}}) {upper = false} : (tensor<64x64xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>

// The triangle lies in shared memory as rows of 16 chunks of 16 bytes; the inverses take the places of its diagonal blocks.
// CHECK-LABEL: ATTN_KERNEL(256, 1) attention(
// CHECK:         attn::keep_floats<16>(memory + [[A:\w+]], at_row, at_column,
// CHECK:         attn::barrier();
// CHECK:         attn::invert_diagonal<64, false, 16>(memory + [[A]]);
// CHECK:         attn::barrier();

// What is left of v after the state's part becomes what is written, in its registers.
// CHECK:         attn::solve_unit<64, false, 16, 1>([[U:\w+]], memory + [[A]]);
// CHECK:         [[U]]
