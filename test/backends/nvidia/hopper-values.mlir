// Scans with decays of value channels for Hopper: warps of blocks of 16 positions beside two warpgroups that hold the state.
// RUN: attn-opt %inputs/linear/value-half.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/linear/value-half.mlir | FileCheck %s
// RUN: sed -e 's/"forward"/"backward"/; s/x128xbf16/x64xf16/g; s/x128xf32/x64xf32/g; s/x128x64xf32/x64x64xf32/g' %inputs/linear/value-half.mlir | attn-translate --to cuda - | FileCheck %s --check-prefix=REVERSE
// RUN: sed -e 's/) {$/) attributes {tile.choices = {emitter = "tilelang"}} {/; s/interval = 512/interval = 64/' %inputs/linear/value-half.mlir | attn-opt -p nvidia-kernel | FileCheck %s --check-prefix=OTHER

// PLAN: block_kv = 128 : i64, block_q = 16 : i64, blocks = 1 : i64
// PLAN-SAME: tile.schedule = {arch = "sm_90a", emitter = "hopper", occupancy = 1 : i64, stages = 7 : i64}
// PLAN: "tile.decay_values"

// CHECK:      void __launch_bounds__(512, 1) attention(
// CHECK:      attn::barrier_init(shared + kFree, 10 * attn::kWarpArrivals);

// The warps of blocks: 5 blocks are loaded ahead.
// CHECK:      if (warpgroup >= 2) {
// CHECK-NEXT:   attn::fewer_registers<112>();
// CHECK:        const auto load = [&](int number) {
// CHECK:          attn::barrier_arrive_expect(full, 24576);
// CHECK-NEXT:     attn::tma_load(in + 0, &q_map_64x16, full, 0, position, head, batch);
// CHECK:          attn::tma_load(in + 22528, &decay_map_32x16, full, 96, position, {{.*}}, batch);
// CHECK:          for (int n = 0; n < 5 && n < chunks; ++n) load(n);
// CHECK:        for (int number = worker; number < chunks; number += 4) {
// CHECK:          attn::ValueBlock<true, false> rows;
// CHECK:            const float [[G:.*]] = (r < {{.*}}) ? max_nan(given.x, -104.0f) : 0.0f;
// CHECK-NEXT:       rows.steps[r].x = exp2f([[G]] * 1.44269504f);
// CHECK:          rows.enter(values, exchanged, exchanged + 2048, chunk_decay, lane);
// CHECK-NEXT:     rows.template scores<128>(in + 0, in + 4096, scores, lane);
// CHECK-NEXT:     attn::warp_arrive(ready, lane == 0);
// CHECK-NEXT:     rows.add_pairs(values, scores, lane);
// CHECK-NEXT:     attn::barrier_wait(outside, number / 4 & 1);
// CHECK-NEXT:     if (half == 0 && lane == 0 && number + 5 < chunks) {
// CHECK:          rows.add_outside(exchanged, lane);
// CHECK:            if (products_pairs) *reinterpret_cast<float2 *>(to_products) = product;
// CHECK:            if (rows_pairs) *reinterpret_cast<uint32_t *>(to_rows) = attn::pack_bf16(row.x, row.y);

// A warpgroup: the state in two pieces, of which products add up in the same sums.
// CHECK:        attn::more_registers<144>();
// CHECK:          attn::load_matrices_transposed(exchanged + p * 2048
// CHECK:            residual[n] = attn::pack_residual_bf16(held[n], state[8 * first + 2 * n], state[8 * first + 2 * n + 1]);
// CHECK:              attn::wgmma_m64n16k16_rs_bf16(o, held[
// CHECK-NEXT:         attn::wgmma_m64n16k16_rs_bf16(o, residual[
// CHECK:            state[c] *= c & 2 ? factor.y : factor.x;
// CHECK:            attn::wgmma_m64n128k16_rs_bf16_tb(state, entering[1]
// CHECK-NEXT:       attn::wgmma_m64n128k16_rs_bf16_tb(state, entering[0]
// CHECK:          attn::warp_arrive(outside, lane == 0);

// Residuals of f16 are scaled by 2^11, and so is the state while they are added.
// REVERSE:     void __launch_bounds__(256, 1) attention(
// REVERSE-NOT: fewer_registers<112>();
// REVERSE:     attn::ValueBlock<false, true> rows;
// REVERSE:     attn::load_shared(chunk_decay + 4 * row) * 2048.0f
// REVERSE:     attn::wgmma_m64n16k16_rs_f16(scaled, residual[
// REVERSE:     attn::wgmma_m64n64k16_rs_f16_tb(state, entering[1]
// REVERSE:     o[c] += scaled[c] * (1.0f / 2048.0f);
// REVERSE:     state[c] *= (1.0f / 2048.0f);
// REVERSE:     attn::wgmma_m64n64k16_rs_f16_tb(state, entering[0]

// OTHER-NOT: tile.decay_values
// OTHER:     emitter = "tilelang"
