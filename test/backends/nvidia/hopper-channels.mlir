// GLA for Hopper: 8 warps make of log decays, q and k what two warpgroups multiply, which keep the state as without channels.
// RUN: attn-opt %inputs/linear/gla-half.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/linear/gla-half.mlir | FileCheck %s
// RUN: sed -e 's/"forward"/"backward"/; s/x128xbf16/x64xf16/g; s/x128xf32/x64xf32/g; s/x128x64xf32/x64x64xf32/g' %inputs/linear/gla-half.mlir | attn-translate --to cuda - | FileCheck %s --check-prefix=REVERSE
// RUN: sed -e 's/) {$/) attributes {tile.choices = {emitter = "tilelang"}} {/' %inputs/linear/gla-half.mlir | attn-opt -p nvidia-kernel | FileCheck %s --check-prefix=OTHER
// RUN: sed -e 's/) {$/) attributes {tile.choices = {arch = "sm_80"}} {/' %inputs/linear/gla-half.mlir | attn-opt -p nvidia-kernel | FileCheck %s --check-prefix=OTHER

// PLAN: block_kv = 128 : i64, block_q = 64 : i64, blocks = 1 : i64
// PLAN-SAME: tile.schedule = {arch = "sm_90a", emitter = "hopper", occupancy = 1 : i64, stages = 2 : i64}
// PLAN: "tile.decay_channels"

// CHECK:      void __launch_bounds__(512, 1) attention(

// The preparing warps: swizzle atoms of 64 channels are loaded ahead; of q's mod, a constant factor, none is left.
// CHECK:      if (warpgroup >= 2) {
// CHECK-NEXT:   attn::fewer_registers<112>();
// CHECK:        const auto load = [&](int number, int atom, int slot) {
// CHECK:          attn::barrier_arrive_expect(full, 32768);
// CHECK-NEXT:     attn::tma_load(to + 0, &decay_map_32x64, full, 64 * atom, position, {{.*}}, batch);
// CHECK-NEXT:     attn::tma_load(to + 8192, &decay_map_32x64, full, 64 * atom + 32, position, {{.*}}, batch);
// CHECK-NEXT:     attn::tma_load(to + 16384, &q_map_64x64, full, 64 * atom, position, {{.*}}, batch);
// CHECK:          if (chunks > 0) load(0, 0, 0);
// CHECK:        attn::ChannelPairs<true, false> pairs;
// CHECK:          attn::barrier_wait(shared + kFull + 8 * slot, iteration / 2 & 1);
// CHECK:            const float [[G:.*]] = ((8 * warp + r) < {{.*}}) ? max_nan(given.x, -104.0f) : 0.0f;
// CHECK-NEXT:       channels.steps[r].x = exp2f([[G]] * 1.44269504f);
// CHECK:          channels.share_totals(in, warp, lane);
// CHECK-NEXT:     attn::named_sync(4, 256);
// CHECK:          channels.make_tiles<true, true>(in + 16384, in + 24576, {{.*}}, in,
// CHECK-NEXT:       warp, lane, 0.125f, 1.0f);
// CHECK:          pairs.add(shared + kLevels, warp, lane);
// CHECK:        pairs.store<2>(at + 49152, shared + kOwn, warp, lane);
// CHECK-NEXT:   attn::fence_proxy_async();

// A warpgroup: o from the state and from pairs, the state times the factors of its channels.
// CHECK:        attn::more_registers<144>();
// CHECK:        attn::wgmma_m64n64k16_rs_bf16(o, held[
// CHECK:        attn::wgmma_m64n64k16_ss_bf16_ta(o,
// CHECK:        const float2 factor = attn::load_shared2(shared + kChunkDecay + stage * 512 + 4 * (column + 8 * c));
// CHECK:        attn::load_matrices_transposed({{.*}}, entering[k]);
// CHECK:        attn::wgmma_m64n128k16_rs_bf16_tb(state, entering[k]
// CHECK:        attn::tma_store(&o_map_64x64, own, warpgroup * 64, position{{.*}}, head, batch);

// REVERSE:     void __launch_bounds__(384, 1) attention(
// REVERSE-NOT: fewer_registers<112>();
// REVERSE:     attn::ChannelPairs<false, true> pairs;
// REVERSE:     channels.make_tiles<true, true>(in + 24576, in + 16384,
// REVERSE-NEXT: warp, lane, 1.0f, 0.125f);

// OTHER-NOT: tile.decay_channels
// OTHER:     emitter = "tilelang"
