// The printer for sm_80: products, copies and reads of single warps, loads to registers; instructions of sm_90 have no rule.
// RUN: attn-translate --to warp-cuda %s | FileCheck %s
// RUN: sed -e 's/"warp.copy_commit"() : /"warp.mma_commit"() : /' %s | not attn-translate --to warp-cuda - 2>&1 | FileCheck %s --check-prefix=OTHER

#smem = #warp.shared<128 : i64>
!acc = tensor<128x72xf32, #warp.layout<"mma32", "tile">>
!half = tensor<128x64xbf16, #warp.layout<"mma32", "tile">>
!tile = memref<64x64xbf16, #smem>
!heads = memref<?x?x?x64xbf16>
!out = memref<?x?x?x72xf32>

// OTHER: the printer for sm_80 has no rule for 'warp.mma_commit'

// Two thread blocks of 128 threads have 248 registers a thread each.
// CHECK: extern "C" __global__ void __launch_bounds__(128, 2) products(
"warp.kernel"() ({
^bb0(%x: !heads, %y: !out):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  // CHECK: const uint32_t [[A:.*]] = shared;
  %own = "warp.alloc"() : () -> memref<1x128x64xbf16, #smem>
  // CHECK: const uint32_t [[B:.*]] = shared + 16384;
  %all = "warp.alloc"() : () -> memref<1x64x64xbf16, #smem>
  // CHECK: const uint32_t [[C:.*]] = shared + 24576;
  %more = "warp.alloc"() : () -> memref<1x64x64xbf16, #smem>
  // CHECK-NOT: __syncthreads
  "warp.role"() ({
  ^bb0(%group: index):
    // CHECK: blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)
    %block = "warp.block_id"() : () -> index
    %a = "warp.view"(%own, %c0, %c0, %c0) : (memref<1x128x64xbf16, #smem>, index, index, index) -> memref<128x64xbf16, #smem>
    %b = "warp.view"(%all, %c0, %c0, %c0) : (memref<1x64x64xbf16, #smem>, index, index, index) -> !tile
    %c = "warp.view"(%more, %c0, %c0, %c0) : (memref<1x64x64xbf16, #smem>, index, index, index) -> memref<64x8xbf16, #smem>
    // CHECK: attn::copy_lanes<128, 1>(attn::Atoms{[[A]], 16384}, &arg0[(0) * arg0_s0 + (0) * arg0_s1 + 0 * arg0_s2 + (0)], arg0_s2, {{.*}}, arg0_n2, warp, lane_here{{.*}});
    "warp.copy_lanes_async"(%x, %c0, %c0, %block, %c0, %a) : (!heads, index, index, index, index, memref<128x64xbf16, #smem>) -> ()
    // CHECK: attn::copy_lanes<64, 1>(attn::Atoms{[[B]], 8192}
    "warp.copy_lanes_async"(%x, %c0, %c0, %c0, %c0, %b) : (!heads, index, index, index, index, !tile) -> ()
    // CHECK-NEXT: attn::copy_commit();
    "warp.copy_commit"() : () -> ()
    // CHECK-NEXT: attn::copy_wait<0>();
    "warp.copy_wait"() {pending = 0} : () -> ()
    // CHECK-NEXT: attn::named_sync(1, 128);
    "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
    %start = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 128, 72>} : () -> !acc
    // CHECK: uint32_t [[TILE:tile.*]][32];
    // CHECK-NEXT: attn::load_factor<64, 2>([[TILE]], attn::SharedFactor{attn::Atoms{[[A]], 16384}, warp * 32, lane});
    %held = "warp.read"(%a) : (memref<128x64xbf16, #smem>) -> !half
    // CHECK: uint32_t [[LOADED:loaded.*]][32];
    // CHECK: at < arg0_n2 ? __bfloat162float(
    %pending = "warp.load_async"(%x, %c0, %c0, %c0, %c0) : (!heads, index, index, index, index) -> !warp.pending<!half>
    %loaded = "warp.load_wait"(%pending) {pending = 0} : (!warp.pending<!half>) -> !half
    %wide = "warp.concat"(%b, %c) : (!tile, memref<64x8xbf16, #smem>) -> memref<64x72xbf16, #smem>
    // Columns of b in two tiles; a in registers, then in shared memory.
    // CHECK: attn::multiply<attn::BF16, 72, 64, 2, false>([[SUM:.*]], attn::held_2([[TILE]]), attn::Beside<64, attn::Atoms, attn::Atoms>{attn::Atoms{[[B]], 8192}, attn::Atoms{[[C]], 8192}}, lane);
    %s = "warp.mma"(%start, %held, %wide) {transpose_a = false, transpose_b = false} : (!acc, !half, memref<64x72xbf16, #smem>) -> !acc
    // CHECK: attn::multiply<attn::BF16, 72, 64, 2, false>({{.*}}, attn::held_2([[LOADED]])
    %t = "warp.mma"(%s, %loaded, %wide) {transpose_a = false, transpose_b = false} : (!acc, !half, memref<64x72xbf16, #smem>) -> !acc
    // CHECK: attn::multiply<attn::BF16, 72, 64, 2, false>({{.*}}, attn::SharedFactor{attn::Atoms{[[A]], 16384}, warp * 32, lane}
    %u = "warp.mma"(%t, %a, %wide) {transpose_a = false, transpose_b = false} : (!acc, memref<128x64xbf16, #smem>, memref<64x72xbf16, #smem>) -> !acc
    "warp.store"(%u, %y, %c0, %c0, %c0) : (!acc, !out, index, index, index) -> ()
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "products", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912, warp.schedule = {arch = "sm_80"}} : () -> ()
