// Simple GLA for Hopper: a warpgroup keeps its 64 columns of the state, transposed, in registers; a producer warp loads and sums up decays.
// It is asked for by name: the `warp` dialect makes scans without products faster.
// RUN: sed '/^func.func/s/ {$/ attributes {tile.choices = {emitter = "hopper"}} {/' %inputs/linear/half.mlir > %t
// RUN: attn-opt %t -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %t | FileCheck %s
// RUN: sed -e "s/x64xf16/x128xbf16/g" -e "s/x64x64xf32/x128x128xf32/g" %t | attn-opt -p nvidia-kernel | FileCheck %s --check-prefix=WIDE

// PLAN: tile.schedule = {arch = "sm_90a", emitter = "hopper", occupancy = 3 : i64, stages = 2 : i64}
// WIDE: block_kv = 128 : i64, block_q = 64 : i64, blocks = 1 : i64
// WIDE-SAME: occupancy = 1 : i64, stages = 3 : i64

// CHECK:      void __launch_bounds__(160, 3) attention(
// CHECK:      const int chunks = (q_n2 - 0 + 64 - 1) / 64;

// The producer: rows past the end have no decay; q's constant factor joins what scales o.
// CHECK:      if (attn::warp_index() == 4) {
// CHECK:        attn::barrier_wait(shared + kFree + 8 * stage, (number / 2 & 1) ^ 1);
// CHECK:        attn::barrier_arrive_expect(full, 24576);
// CHECK-NEXT:   attn::tma_load(at + 0, &q_map_64x64, full, 0, position, {{.*}}, batch);
// CHECK:        const float [[G:.*]] = ((2 * lane + 1) < {{.*}}) ? max_nan({{.*}}, -104.0f) : 0.0f;
// CHECK:        attn::sum_of_lanes_before(
// CHECK:        const float output_decay_2 = output_decay * 0.125f;
// CHECK:        attn::store_shared2({{.*}}, output_decay_2, output_decay_4);
// CHECK:        attn::warp_sync();
// CHECK-NEXT:   attn::warp_arrive(full, lane == 0);

// A warpgroup: weights of the chunk's pairs, o from the state and from the chunk, the state after it.
// CHECK:      auto *const place = &initial_state[
// CHECK:      state[4 * c + 2 * h + e] = place[
// CHECK:      #pragma unroll 1
// CHECK:        attn::wgmma_m64n64k16_ss_f16(scores,
// CHECK:        const bool [[PRESENT:.*]] = ((row + 8 * h) >= (from + 8 * (c + d) + e)) &
// CHECK:        exp2f(
// CHECK:        const float decay_mask_2 = decay_mask * 0.125f;
// CHECK:        scores[4 * (c + d) + 2 * h + e] * decay_mask_2
// CHECK:        attn::store_matrices(shared + kWeights
// CHECK:        attn::fence_proxy_async();
// CHECK:        if (number > 0) attn::warp_arrive(shared + kFree + 8 * ((number - 1) % 2), threadIdx.x == 0);
// CHECK:        held[n] = attn::pack_f16(state[
// CHECK:        attn::wgmma_m64n64k16_rs_f16(o, held[
// CHECK:        attn::wgmma_m64n64k16_ss_f16_ta(o,
// CHECK:        state[c] *= chunk_decay;
// CHECK:        attn::load_matrices_transposed({{.*}}, entering[k]);
// CHECK:        attn::wgmma_m64n64k16_rs_f16_tb(state, entering[k]
// CHECK:        attn::store_matrices_transposed(own
// CHECK:        attn::tma_store(&o_map_64x64, own, warpgroup * 64, position{{.*}}, head, batch);
// CHECK:      auto *const place = &final_state[
// CHECK:      place[(8 * c + e) * final_state_s2 + 8 * h * final_state_s3] = state[4 * c + 2 * h + e];
