// In kernels of one chunk whose products are those of loaded tiles of 64 positions a warpgroup multiplies: TMA brings both factors.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %inputs/linear/gated-delta-half.mlir | FileCheck %s

// PLAN-LABEL: func.func @attention_chunks(
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", atoms = 1 : i64, emitter = "scans", occupancy = 4 : i64, stages = 1 : i64, warps = 4 : i64}

// One thread asks for tiles; all copy numbers of rows. Rows of a thread, one at most, have no loop, and no barrier before the same thread's.
// CHECK-LABEL: void __launch_bounds__(128, 4) attention_chunks(
// CHECK:           if (threadIdx.x == 0) {
// CHECK-NEXT:        attn::barrier_init([[ARRIVAL:attn::shared_address\(memory \+ [0-9]+\)]], 1);
// CHECK-NEXT:        attn::barrier_init_fence();
// CHECK-NEXT:        attn::barrier_arrive_expect([[ARRIVAL]], 16384);
// CHECK-NEXT:        attn::tma_load(attn::shared_address([[Q:memory]]), &q_map_64x64, [[ARRIVAL]], 0, next,
// CHECK-NEXT:        attn::tma_load(attn::shared_address([[K:\(memory \+ 8192\)]]), &k_map_64x64, [[ARRIVAL]], 0, next,
// CHECK:           attn::copy_4(
// CHECK:         fetch(at, 0);
// CHECK-NEXT:    attn::wait_copies();
// CHECK-NEXT:    __syncthreads();
// CHECK:         attn::running_sum<64, false>(
// CHECK:         if (const int i = threadIdx.x; i < 64) {
// CHECK:           exp2f(
// CHECK-NOT:     __syncthreads

// Numbers of rows are made while tiles are on their way. What no system needs is made and stored first, so that one product is held at a time.
// CHECK:         attn::barrier_wait([[ARRIVAL]], 0);
// CHECK:         const uint64_t a = attn::k_major(attn::shared_address([[Q]]));
// CHECK:         attn::wgmma_m64n64k16_ss_bf16([[P:product]], a, b, 0);
// CHECK:         attn::wgmma_wait<0>();
// CHECK-NEXT:    attn::hold([[P]]);
// CHECK:         attn::keep_packed<64, 64, 4>([[Q]],
// CHECK:         const uint64_t a = attn::k_major(attn::shared_address([[K]]));
// CHECK:         attn::wgmma_m64n64k16_ss_bf16([[A:product_2]], a, b, 0);
// CHECK:         attn::invert_triangle<64, 2>(
