// Plain kernels of linear attention: sums over the heads of a group, and gradients of decays that all channels of a head share.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %s | FileCheck %s

!q = tensor<?x?x?x256xf16>
!g = tensor<?x?x?xf32>
!s = tensor<?x?x?x64xf32>

// A thread has packs of 8 columns, of 16 / 8 rows one after another; a head's row is a pack of f16 that is added in f32.
// PLAN-LABEL: @heads
// PLAN-SAME:  emitter = "simt", lanes = 32 : i64, threads = 256 : i64, unroll = 4 : i64, vector = 8 : i64
// CHECK:      void heads_rows(
// CHECK:        for (int i = (int)threadIdx.x / 32; i < {{.*}}; i += 8) {
// CHECK:          #pragma unroll 4
// CHECK-NEXT:     for (int turn = 0;
// CHECK:            Pack<__half, 8> pack;
// CHECK:          Pack<__half, 8> rounded;
func.func @heads(%x: !q, %like: !q) -> !q {
  %r = "attn.head_sum"(%x, %like) : (!q, !q) -> !q
  return %r : !q
}

// One number a thread.
// PLAN-LABEL: @decays
// PLAN-SAME:  emitter = "simt", threads = 64 : i64
// CHECK:      void __launch_bounds__(64) decays(
// CHECK:        if (i < {{.*}}) out0[{{.*}}] = total;
func.func @decays(%x: !g, %like: !g) -> !g {
  %r = "attn.head_sum"(%x, %like) : (!g, !g) -> !g
  return %r : !g
}

// 512 steps, a thread each: products of states first, then sums of steps by exchanges of threads.
// PLAN-LABEL: @gradient
// PLAN-SAME:  emitter = "simt", steps = 1 : i64, threads = 512 : i64
// CHECK:      void gradient_rows(
// CHECK:        for (int c = thread; c < 2048; c += 512) {
// CHECK:          load_pack<Aligned>(
// CHECK:        of_states = block_sum<512>(of_states);
// CHECK:        const float sum = block_scan<512>(step);
func.func @gradient(%a: !g, %b: !g, %s: !s, %e: !s) -> !g {
  %r = "attn.decay_gradient"(%a, %b, %s, %e) {interval = 512 : i64, rows = 128 : i64} : (!g, !g, !s, !s) -> !g
  return %r : !g
}

// Of a segment: 16 threads share its positions for each pack of channels, and meet.
// PLAN-LABEL: @segments
// PLAN-SAME:  emitter = "simt", lanes = 16 : i64, threads = 256 : i64, unroll = 4 : i64, vector = 4 : i64
// CHECK:      void segments_rows(
// CHECK:        parts[i][j0 + e] = state.x[e];
// CHECK:        __syncthreads();
// CHECK-NEXT:   if (i > 0) return;
func.func @segments(%like: !s, %g: !s) -> !s {
  %r = "attn.decay_sum"(%like, %g) ({
  ^bb0:
  }) {segment = 1024 : i64} : (!s, !s) -> !s
  return %r : !s
}
