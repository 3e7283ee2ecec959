// Matrices that take states from segment to segment: warpgroups have all rows and 64 columns of the state, where inputs have 16 bits. They
// multiply pieces of bf16, which the warps that help make of the matrix as they copy it.
// RUN: attn-opt %s -p 'nvidia-choose-blocks' | FileCheck %s --check-prefix=BLOCKS
// RUN: attn-opt %s -p 'nvidia-choose-blocks{arch=sm_80}' | FileCheck %s --check-prefix=AMPERE
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-split-sequences{segment=512},attn-outline{keep-hosts=false},nvidia-kernel' | FileCheck %s

!s = tensor<?x?x128x128xf32>
!like = tensor<?x?x?x128xbf16>

// BLOCKS-LABEL: func.func @scan(
// BLOCKS-SAME:    tile.blocks = array<i64: 128, 64>
// AMPERE-LABEL: func.func @scan(
// AMPERE-NOT:     tile.blocks
// CHECK-LABEL: func.func @attention_2_transition_scan(
// CHECK-SAME:    block_kv = 64 : i64, block_q = 64 : i64, blocks = 1 : i64
// CHECK-SAME:    tile.schedule = {arch = "sm_90a", emitter = "scans", occupancy = 1 : i64, stages = 2 : i64, warpgroups = 1 : i64}
func.func @scan(%states: !s, %like: !like, %matrices: !s) -> !s {
  %before, %final = "attn.transition_scan"(%states, %like, %matrices) {segment = 512 : i64, rows = 128 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 1>}
    : (!s, !like, !s) -> (!s, !s)
  return %before : !s
}
