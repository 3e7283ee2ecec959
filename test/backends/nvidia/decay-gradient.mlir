// The gradient of channels' decays in plain code: 8 groups of threads sum up 8 rows each, of 4 columns a thread.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to cuda %s | FileCheck %s
// RUN: sed -e 's/x128xf32/x72xf32/; s/rows = 128/rows = 72/; s/interval = 512/interval = 64/' %s | attn-opt -p nvidia-kernel | FileCheck %s --check-prefix=ODD

!a = tensor<?x?x?x128xf32>
!s = tensor<?x?x?x64xf32>

// PLAN-LABEL: @one
// PLAN-SAME:  tile.schedule = {arch = "sm_90a", columns = 128 : i64, emitter = "simt", threads = 256 : i64}

// 72 columns are not whole waves of threads.
// ODD-LABEL: @one
// ODD-SAME:  emitter = "tilelang"

// CHECK:      void one_rows(
// CHECK:        const int j0 = thread % 32 * 4;
// CHECK:        for (int i = thread / 32; i < 128; i += 8) {
// CHECK:          for (int j = thread % 32; j < 64; j += 32) {
// CHECK:          if (thread % 32 == 0) of_rows[i] = of_row;
// CHECK:        __syncthreads();
// CHECK-NEXT:   float before[4] = {};
// CHECK-NEXT:   for (int first = 0; first < {{.*}}; first += 64) {
// CHECK:          load_pack<Aligned>(loaded0[r]
// CHECK:          load_pack<Aligned>(loaded1[r]
// CHECK:              if (r > 0) sums[r][e] += sums[r - 1][e];
// CHECK-NEXT:         if (r == 7) parts[group][j] = sums[r][e];
// CHECK:          __syncthreads();
// CHECK:              if (g < group) added += part;
// CHECK-NEXT:         before[e] += part;
// CHECK:          __syncthreads();
// CHECK:            store_pack<Aligned>(
func.func @one(%a: !a, %b: !a, %s: !s, %e: !s) -> !a {
  %r = "attn.decay_gradient"(%a, %b, %s, %e) {interval = 512 : i64, rows = 128 : i64} : (!a, !a, !s, !s) -> !a
  return %r : !a
}

// With offsets a program has a whole sequence: between its intervals all threads meet.

!c = tensor<?x?x?x64xf32>

// PLAN-LABEL: @sequences
// PLAN-SAME:  tile.schedule = {arch = "sm_90a", columns = 64 : i64, emitter = "simt", threads = 128 : i64}

// CHECK:      void sequences_rows(
// CHECK:        for (int turn = 0; turn < {{.*}}; turn += 1) {
// CHECK:            store_pack<Aligned>(
// CHECK:          __syncthreads();
func.func @sequences(%a: !c, %b: !c, %s: !c, %e: !c, %offsets: tensor<?xi32>) -> !c {
  %r = "attn.decay_gradient"(%a, %b, %s, %e, %offsets) {interval = 512 : i64, rows = 64 : i64} : (!c, !c, !c, !c, tensor<?xi32>) -> !c
  return %r : !c
}

// Of two scans in each direction: four tiles come in.

// CHECK:      void sums_rows(
// CHECK:          load_pack<Aligned>(loaded3[r]
// CHECK:            loaded0[r].x[e] + loaded1[r].x[e]
func.func @sums(%a: !a, %a_2: !a, %b: !a, %b_2: !a, %s: !s, %e: !s, %e_2: !s) -> !a {
  %r = "attn.decay_gradient_sum"(%a, %a_2, %b, %b_2, %s, %e, %e_2) {interval = 512 : i64, rows = 128 : i64} : (!a, !a, !a, !a, !s, !s, !s) -> !a
  return %r : !a
}
