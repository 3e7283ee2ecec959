// Linear attention of f32: chunks of 32 positions in blocks of 16 x 16, products of f32, sums of log decays in f64.
// RUN: attn-opt %s -p amd-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to hip | FileCheck %s

!t = tensor<?x?x?x128xf32>
!s = tensor<?x?x128x128xf32>

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    block_kv = 64 : i64, block_q = 32 : i64, blocks = 2 : i64, {{.*}}grid = "chunks"
// PLAN-SAME:    tile.schedule = {arch = "gfx90a", emitter = "chunks", reuse = 1 : i64, waves = 1 : i64}

// CHECK-LABEL: ATTN_KERNEL(256, 1) attention(
// CHECK-NOT:     __half
// CHECK:         attn::Array<attn::Block<16>::Floats, 8> [[STATE:\w+]];

// Rows of 128 columns: 16 bytes a load, 8 columns of a row, or 4 of 8 rows.
// CHECK:         attn::load_floats_8<4, 128, 128>(from, min(row, rows - 1) * stride, column);
// CHECK:         attn::load_floats_4<4, 64, 64>(from, min(row + e, rows - 1) * stride, column);

// CHECK:         attn::Array<double, 1> [[STEPS:\w+]] = x_next;
// CHECK:         const attn::Array<double, 1> [[SUMS:\w+]] = {attn::wave_cumsum<32, false>([[STEPS]][0])};

// q S: a row of 128 terms has 32 chunks of 16 bytes.
// CHECK:         attn::keep_floats<32>(memory + [[Q:\w+_rows]], row, column,
// CHECK:         attn::multiply<float, 16, 128, {{.*}}, 32>([[O:\w+]], memory + [[Q]],

// Weights: a difference in f64, rounded once. They stay f32.
// CHECK:         ((double *)(memory + {{\w+}}))[wave * 32 + lane] = [[SUMS]][0];
// CHECK:         exp2f((float)({{\w+}} - {{\w+}})
// CHECK:         attn::keep_floats<8>(memory + [[WEIGHTS:\w+]],
// CHECK:         attn::multiply<float, 16, 32, {{.*}}, 8>([[O]], memory + [[WEIGHTS]],
// CHECK:         attn::store_floats<4, 64>(
// CHECK:         attn::multiply<float, 16, 32, {{.*}}, 8>([[STATE]],

func.func @attention(%q: !t, %k: !t, %v: !t, %decay: tensor<?x?x?xf32>, %initial_state: !s) -> (!t, !s) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"],
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (!t, !t, !t, tensor<?x?x?xf32>, !s) -> (!t, !s)
  return %o, %final_state : !t, !s
}
