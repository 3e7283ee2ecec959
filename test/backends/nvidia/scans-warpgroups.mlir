// Where chunks were prepared, warpgroups multiply (wgmma): tiles with columns of v are in registers the other way round, right factors of
// products among them, left ones in shared memory, where TMA brings them, and numbers of rows, as the kernel before stored them. The other
// warps ask for tiles and take rows to memory: three stages, or two where there is no room.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/linear/gated-delta-half.mlir | FileCheck %s

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", emitter = "scans", occupancy = 1 : i64, stages = 3 : i64, warpgroups = 1 : i64}

// CHECK-LABEL: void __launch_bounds__(256, 1) attention(
// CHECK:           for (int stage = 0; stage < 3; ++stage) attn::barrier_init([[ARRIVALS:attn::shared_address\(memory \+ [0-9]+\)]] + 8 * stage, 1);
// CHECK:         if (attn::warpgroup_index() == 0) {
// CHECK:               if (threadIdx.x == 0) {
// CHECK-NEXT:          attn::barrier_arrive_expect([[ARRIVALS]] + 8 * stage, 50432);
// CHECK:             attn::tma_load({{.*}}, &k_map_[[CHUNK:64]]x64, [[ARRIVALS]] + 8 * stage, 0, next, {{.*}}, batch);
// CHECK-COUNT-5:     attn::bulk_load({{.*}}, 256, [[ARRIVALS]] + 8 * stage);
// CHECK:           const auto give = [&](int last, int stage) {
// CHECK-NOT:       numbers
// CHECK:           for (; [[AT:at]] < {{.*}}; [[AT]] += [[CHUNK]], stage = stage + 1 == 3 ? 0 : stage + 1) {
// CHECK-NEXT:        if ([[AT]] >= 0 + 3 * [[CHUNK]]) {
// CHECK-NEXT:          attn::named_sync([[EMPTY:6]] + stage, 256);
// CHECK-NEXT:          give([[AT]] - 3 * [[CHUNK]], stage);
// CHECK-NEXT:          attn::named_sync({{[0-9]+}}, 128);
// CHECK-NEXT:        }
// CHECK-NEXT:        fetch([[AT]], stage);
// CHECK:         else {

// The state, rounded, and its residual, are factors. The first read of the state waits for no numbers of rows.
// CHECK:           float [[STATE:carried]][32];
// CHECK:             attn::barrier_wait([[ARRIVALS]] + 8 * stage, parity);
// CHECK-NOT:         named_sync
// CHECK:             [[HIGH:packed]][2 * n + r] = attn::pack(attn::BF16{},
// CHECK:             [[LOW:[a-z_0-9]+]][2 * n + r] = attn::residual(attn::BF16{},
// CHECK:             attn::wgmma_m64n[[CHUNK]]k16_rs_bf16([[READ:product]], [[HIGH]][0], [[HIGH]][1], [[HIGH]][2], [[HIGH]][3], b, 0);
// CHECK-NEXT:        attn::wgmma_m64n[[CHUNK]]k16_rs_bf16([[READ]], [[LOW]][0], [[LOW]][1], [[LOW]][2], [[LOW]][3], b, 1);

// The product that changes the state in place comes before o, whose rows the other warps take to memory.
// CHECK:             [[STATE]][4 * n + 2 * r + c] *= scale;
// CHECK:             attn::mn_major(
// CHECK-NEXT:        attn::wgmma_m64n64k16_rs_bf16_tb([[STATE]],
// CHECK:             attn::keep_turned<attn::BF16, [[CHUNK]], 64>(
// CHECK:             attn::named_arrive([[EMPTY]] + stage, 256);
