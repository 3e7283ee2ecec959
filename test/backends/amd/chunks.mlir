// A chunk scan for AMD GPUs: the next chunk on its way while this one is multiplied, the state in registers.
// RUN: attn-opt %s -p amd-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to hip | FileCheck %s
// RUN: attn-run %s -p amd-kernel

!t = tensor<?x?x?x64xf16>
!s = tensor<?x?x64x64xf32>

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    blocks = 1 : i64, disjoint = {{.*}}, grid = "chunks"
// PLAN-SAME:    tile.schedule = {arch = "gfx90a", emitter = "chunks", reuse = 1 : i64, waves = 2 : i64}

// CHECK:       #include "attn_amd_chunks.h"
// CHECK-LABEL: ATTN_KERNEL(256, 2) attention(
// Tiles in shared memory; those that are not needed at the same time share it.
// CHECK:         constexpr int {{\w+_rows}} = [[PLACE:[0-9]+]];
// CHECK:         constexpr int {{\w+_columns}} = [[PLACE]];

// The state begins in registers: lanes have columns.
// CHECK:         attn::Array<attn::Block<32>::Floats, 1> [[STATE:\w+]];
// CHECK:         const int at_row = {{.*}} + first, at_column = {{.*}} + own;

// Decays and tiles of the next chunk are loaded ahead; rows behind the end repeat the last one.
// CHECK:         const auto fetch = [&](int next)
// CHECK:           attn::load_eight<8, 64, 64>(from, min(row, rows - 1) * stride, column)
// CHECK:           attn::load_four<8, 64, 64>(from, min(row + e, rows - 1) * stride, column)
// CHECK:         for (int at = begin; at < end; at += 64) {
// CHECK-NEXT:      attn::barrier();
// CHECK:           if (at + 64 < end) fetch(at + 64);
// CHECK:           attn::wave_cumsum<64, false>
// CHECK:           attn::of_lane({{\w+}}[0], 63)

// The mod of q, on the way to shared memory.
// CHECK:           * 0.125f

// q S; q k^T; the weights of pairs; what the chunk's own positions add to the decayed q S; the next state.
// CHECK:           attn::multiply<__half, 32, 64, 1, 1, 1, 1, 8>([[O:\w+]], memory + [[Q:\w+_rows]], {{.*}}, memory + {{\w+_columns}},
// CHECK:           attn::multiply<__half, 32, 64, 1, 1, 1, 1, 8>([[PRODUCT:\w+]], memory + [[Q]], {{.*}}, memory + {{k_tile\w*_rows}},
// CHECK:           [[PRODUCT]][0][r] * decay_mask
// CHECK:           [[O]][0] *= ((const float *)(memory +
// CHECK:           attn::multiply<__half, 32, 64, 1, 1, 1, 1, 8>([[O]], memory + {{\w+_rows}}, {{.*}}, memory + {{v_tile\w*_columns}},
// CHECK:           attn::store_halves<8, 64>(
// CHECK:           [[STATE]][0] *= {{\w+}};
// CHECK:           attn::multiply<__half, 32, 64, 1, 1, 1, 1, 8>([[STATE]], memory + {{\w+_columns}}, {{.*}}, memory + {{\w+_columns}},
// CHECK:         }
// CHECK:         final_state[

func.func @attention(%q: !t, %k: !t, %v: !t, %decay: tensor<?x?x?xf32>, %initial_state: !s) -> (!t, !s) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %x, %scale : f32
      %highest = arith.constant 8.0 : f32
      %y = arith.minimumf %scaled, %highest : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"],
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (!t, !t, !t, tensor<?x?x?xf32>, !s) -> (!t, !s)
  return %o, %final_state : !t, !s
}
