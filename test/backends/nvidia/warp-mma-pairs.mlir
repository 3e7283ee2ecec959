// What backward passes need on sm_80: weights written to shared memory, a factor that is stored the other way, sums that are added.
// RUN: attn-translate --to warp-cuda %s | FileCheck %s

#smem = #warp.shared<128 : i64>
!weights = tensor<64x64xf16, #warp.layout<"mma16", "tile">>
!acc = tensor<64x64xf32, #warp.layout<"mma16", "tile">>
!tile = memref<64x64xf16, #smem>
!heads = memref<?x?x?x64xf16>
!numbers = memref<1x64xf32, #warp.shared<0 : i64>>

// CHECK: extern "C" __global__ void __launch_bounds__(128, 2) sums(
"warp.kernel"() ({
^bb0(%x: !heads, %lse: memref<?x?x?xf32>, %dq: memref<?x?x?x?x64xf32>, %dk: !heads):
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  // CHECK: const uint32_t [[W:.*]] = shared;
  %exchange = "warp.alloc"() : () -> memref<1x64x64xf16, #smem>
  // CHECK: float *const [[NUMBERS:.*]] = reinterpret_cast<float *>(memory
  %of_rows = "warp.alloc"() : () -> !numbers
  "warp.role"() ({
  ^bb0(%group: index):
    %w = "warp.view"(%exchange, %c0, %c0, %c0) : (memref<1x64x64xf16, #smem>, index, index, index) -> !tile
    // CHECK: attn::copy_numbers<64>(attn::shared_address([[NUMBERS]] + 0 * 64 + 0), &arg1[(0) * arg1_s0 + (0) * arg1_s1], arg1_s2, 0, arg1_n2, warp,
    "warp.copy_rows_lanes_async"(%lse, %c0, %c0, %c0, %of_rows, %c0, %c0) {count = 64}
        : (memref<?x?x?xf32>, index, index, index, !numbers, index, index) -> ()
    "warp.copy_commit"() : () -> ()
    "warp.copy_wait"() {pending = 0} : () -> ()
    %start = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
    %loaded = "warp.load"(%x, %c0, %c0, %c0) : (!heads, index, index, index) -> !weights
    // CHECK: attn::store_factor<64, 1>([[LOADED:.*]], attn::SharedFactor{attn::Atoms{[[W]], 8192}, warp * 16, lane_here
    "warp.write"(%loaded, %w) : (!weights, !tile) -> ()
    // CHECK: attn::multiply<attn::F16, 64, 64, 1, false>([[SUM:.*]], attn::TransposedFactor{attn::Atoms{[[W]], 8192}, warp * 16, lane}, attn::Atoms{[[W]], 8192}, lane);
    %s = "warp.mma"(%start, %w, %w) {transpose_a = true, transpose_b = false} : (!acc, !tile, !tile) -> !acc
    // A column after the other, to the first slot.
    // CHECK: attn::add_pairs<64, 1>([[SUM]], &arg2[0 * arg2_s0 + (0) * arg2_s1 + (0) * arg2_s2 + 0 * arg2_s3 + (0)], arg2_s3, 0, arg2_n3, warp,
    "warp.atomic_add"(%s, %dq, %c0, %c0, %c0, %c0) {ordered = false} : (!acc, memref<?x?x?x?x64xf32>, index, index, index, index) -> ()
    // CHECK: attn::store_pairs<64, 1>([[LOADED]], &arg3[(0) * arg3_s0 + (0) * arg3_s1 + 0 * arg3_s2 + (0)], arg3_s2, 0, arg3_n2, warp,
    "warp.store"(%loaded, %dk, %c0, %c0, %c0) : (!weights, !heads, index, index, index) -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "sums", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912, warp.schedule = {arch = "sm_80"}} : () -> ()
