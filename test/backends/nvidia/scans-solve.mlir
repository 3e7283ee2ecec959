// Delta rules of 64 key channels and more: plain CUDA. A chunk's tiles are loaded while the one before is computed, products are those of
// warps, and systems are solved by the inverse of their triangle, in pieces of bf16.
// RUN: sed 's/x16xf32/x64xf32/g; s/x8xf32/x64xf32/g' %inputs/linear/gated-delta.mlir | attn-opt - -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: sed 's/x16xf32/x64xf32/g; s/x8xf32/x64xf32/g' %inputs/linear/gated-delta.mlir | attn-opt - -p nvidia-kernel | attn-translate - --to cuda | FileCheck %s

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    nvidia.pieces = 3 : i64
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", emitter = "scans"{{.*}}, stages = 2 : i64, warps = 8 : i64}
// PLAN:         "tile.solve_unit"

// CHECK-LABEL: void __launch_bounds__(256, 1) attention(
// CHECK:         float [[STATE:carried]][{{[0-9]+}}];
// CHECK:         const auto fetch = [&](int next, int stage) {
// CHECK:           attn::copy_rows<[[CHUNK:64]], 64>((memory + {{.*}}stage * {{[0-9]+}})
// CHECK:           if (threadIdx.x < [[CHUNK]]) attn::copy_4(
// CHECK:         for (int [[AT:at]] = 0; [[AT]] < {{.*}}; [[AT]] += [[CHUNK]], stage ^= 1) {
// CHECK-NEXT:      attn::wait_copies();
// CHECK-NEXT:      __syncthreads();
// CHECK-NEXT:      if ([[AT]] + [[CHUNK]] < {{.*}}) fetch([[AT]] + [[CHUNK]], stage ^ 1);
// CHECK:           attn::multiply<attn::BF16, [[CHUNK]],
// CHECK:           attn::keep_triangle<[[CHUNK]], {{[0-9]}}, false>(
// CHECK-NEXT:      attn::cut_results<[[CHUNK]], 64, {{[0-9]}}, 3>([[RIGHT:[a-z_0-9]+]],
// CHECK-NEXT:      __syncthreads();
// CHECK-NEXT:      attn::invert_triangle<[[CHUNK]], 3>(
// CHECK-NEXT:      attn::cut_inverse<[[CHUNK]], false, 3>(
// CHECK-NEXT:      __syncthreads();
// CHECK-NEXT:      float [[SOLVED:[a-z_0-9]+]][
// CHECK-NEXT:      attn::multiply_pieces<[[CHUNK]], 64, {{[0-9]}}, 3>([[SOLVED]],
