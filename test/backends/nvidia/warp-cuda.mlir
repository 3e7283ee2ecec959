// The printer of scheduled kernels: a rule for each op, which looks at the op, its types and how its operands were printed.
// RUN: attn-translate --to warp-cuda %s | FileCheck %s

#smem = #warp.shared<128 : i64>
!acc = tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x128xbf16, #warp.layout<"wgmma", "tile">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!flags = tensor<64xi1, #warp.layout<"wgmma", "rows">>
!ring = memref<2x64x128xbf16, #smem>
!tile = memref<64x128xbf16, #smem>
!heads = memref<?x?x?x128xbf16>
!out = memref<?x?x?xf32>

// CHECK: extern "C" __global__ void __launch_bounds__(128, 1) squares(
// Boxes of 64 columns, the swizzle atoms of a tile.
// CHECK-NEXT: const __grid_constant__ CUtensorMap arg0_map_64x64,
"warp.kernel"() ({
^bb0(%x: !heads, %sums: !out):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %c2 = arith.constant 2 : index
  %rows = memref.dim %x, %c2 : !heads
  // CHECK: const uint32_t tiles = shared;
  %ring = "warp.alloc"() : () -> !ring
  // CHECK: const uint32_t barrier = shared + 32768;
  // CHECK-NEXT: if (threadIdx.x < 2) attn::barrier_init(barrier + threadIdx.x * 8, 1);
  %full = "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
  // CHECK: attn::barrier_init_fence();
  // CHECK-NEXT: __syncthreads();
  // CHECK-NEXT: if (group == 0) {
  // CHECK-NEXT: // role all
  "warp.role"() ({
  ^bb0(%w: index):
    // CHECK: int [[COUNT:carried]];
    // CHECK-NEXT: [[COUNT]] = 0;
    // CHECK-NEXT: for (int [[N:.*]] = 0; [[N]] < arg0_n2; [[N]] += 64) {
    %r = scf.for %n = %c0 to %rows step %c64 iter_args(%count = %c0) -> (index) {
      // CHECK-NEXT: const int [[STAGE:.*]] = (int)((unsigned)[[COUNT]] % 2);
      // CHECK-NEXT: const int [[PHASE:.*]] = (int)((unsigned)[[COUNT]] / 2 & 1);
      %stage, %phase = "warp.stage"(%count) {stages = 2} : (index) -> (index, index)
      // CHECK-NEXT: const uint32_t [[TILE:.*]] = tiles + [[STAGE]] * 16384;
      %tile = "warp.view"(%ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
      // CHECK-NEXT: if (warp == 0 && attn::elect_one()) {
      "warp.elect"() ({
        // CHECK-NEXT: attn::barrier_arrive_expect(barrier + [[STAGE]] * 8, 16384);
        "warp.arrive_expect"(%full, %stage) {bytes = 16384} : (!warp.barrier<2 : i64, 1 : i64>, index) -> ()
        // CHECK-NEXT: attn::tma_load([[TILE]], &arg0_map_64x64, barrier + [[STAGE]] * 8, 0, [[N]], 0, 0);
        // CHECK-NEXT: attn::tma_load([[TILE]] + 8192, &arg0_map_64x64, barrier + [[STAGE]] * 8, 64, [[N]], 0, 0);
        "warp.copy_async"(%x, %c0, %c0, %n, %c0, %tile, %full, %stage) : (!heads, index, index, index, index, !tile, !warp.barrier<2 : i64, 1 : i64>, index) -> ()
      }) : () -> ()
      // CHECK: attn::barrier_wait(barrier + [[STAGE]] * 8, [[PHASE]]);
      "warp.wait"(%full, %stage, %phase) : (!warp.barrier<2 : i64, 1 : i64>, index, index) -> ()
      // CHECK-NEXT: uint32_t [[READ:.*]][32];
      // CHECK: attn::load_matrices([[TILE]] + c / 4 * 8192 + attn::swizzle_128(
      %a = "warp.read"(%tile) : (!tile) -> !half
      %start = "warp.registers"() : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
      // CHECK: attn::wgmma_begin();
      "warp.mma_begin"() : () -> ()
      // b is k-major: its second swizzle atom holds the steps from the fifth on.
      // CHECK: const uint64_t b = attn::k_major(attn::uniform([[TILE]]));
      // CHECK-NEXT: attn::wgmma_m64n64k16_rs_bf16([[SUM:.*]], [[READ]][0], [[READ]][1], [[READ]][2], [[READ]][3], b, 0);
      // CHECK: attn::wgmma_m64n64k16_rs_bf16([[SUM]], [[READ]][16], {{.*}}, attn::advance(b, 8192), 1);
      %pending = "warp.mma_async"(%start, %a, %tile, %false) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, !half, !tile, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
      // CHECK: attn::wgmma_commit();
      "warp.mma_commit"() : () -> ()
      // CHECK-NEXT: attn::wgmma_wait<0>();
      // CHECK-NEXT: attn::hold([[SUM]]);
      %s = "warp.mma_wait"(%pending) {pending = 0} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
      // CHECK: for (int h = 0; h < 2; ++h) [[PARTS:.*]][h] = 0.0f;
      // CHECK: for (int r = 0; r < 32; ++r) {
      // CHECK-NEXT: const float [[X:.*]] = [[SUM]][r] * [[SUM]][r];
      // CHECK-NEXT: [[PARTS]][r / 2 % 2] = [[PARTS]][r / 2 % 2] + [[X]];
      %parts = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %e = tensor.extract %s[%i, %j] : tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
        %square = arith.mulf %e, %e : f32
        "warp.yield"(%square) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = ["sum"], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !parts
      // CHECK: __shfl_xor_sync(0xffffffffu, {{.*}}, 1);
      // CHECK-NEXT: __shfl_xor_sync(0xffffffffu, {{.*}}, 2);
      %sum = "warp.reduce"(%parts) {kind = "sum"} : (!parts) -> !rows
      // One thread of a row stores its value, where the row exists.
      // CHECK: const int at = [[N]] + r % 2 * 8 + lane / 4 % 8 + warp % 4 * 16;
      // CHECK-NEXT: if (lane % 4 == 0 && at >= 0 && at < arg1_n2) arg1[
      "warp.store"(%sum, %sums, %c0, %c0, %n) : (!rows, !out, index, index, index) -> ()
      %next = arith.addi %count, %c1 : index
      // CHECK: [[COUNT]] = {{.*}};
      scf.yield %next : index
    }
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "squares", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
