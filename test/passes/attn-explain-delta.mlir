// RUN: attn-opt %inputs/linear/gated-delta.mlir --attn-explain | FileCheck %s
// RUN: attn-opt %inputs/linear/removed-key.mlir --attn-explain | FileCheck %s --check-prefix=REMOVED
// RUN: sed 's/reads = "decayed"/reads = "written"/' %inputs/linear/removed-key.mlir > %t
// RUN: attn-opt %t --attn-explain | FileCheck %s --check-prefix=WRITTEN

// CHECK:      recurrence, towards later positions
// CHECK:        e = e * arg5[b, h, t]
// CHECK:        S = exp(g_t) S; x_t = e_t S; S = S + k_t (v_t - x_t)^T; o_t = q_t S, read after it
// CHECK:      chunked form, chunks first to last
// CHECK:        S = chunk_decay S + sum over s of input_decay k_s v_s^T
// CHECK-NEXT:   where v is U, of (I + A) U = V - output_decay e_t S, with A = decay_mask (e_t . k_s) for s < t
// CHECK:      confirmed in float64, chunk by chunk against the recurrence: {{[0-9]+}} values, largest relative error {{[0-9].[0-9]e-1[0-9]}}
// CHECK:      backward: with u what is written, dx the gradient of what e reads
// CHECK-NEXT:   dq: the same way with do, u, k in place of q, k, v
// CHECK-NEXT:   dx: the other way with k, q, do in place of q, k, v; k erases, e is removed
// CHECK-NEXT:   de: the same way with dx, u, k in place of q, k, v
// CHECK-NEXT:   dk: the other way with u, do, q in place of q, k, v; dx writes e, too
// CHECK-NEXT:   dv = -dx
// CHECK-NEXT:   confirmed in float64 by differences of the recurrence

// REMOVED:      S = diag(exp(g_t)) S; x_t = e_t S; S = S + k_t v_t^T - r_t x_t^T; o_t = q_t S, read after it
// REMOVED:      and a second writer r with values -X, of (I + A) X = output_decay e_t S + B V
// REMOVED:      dr: the other way with z, do, q in place of q, k, v; dx writes e, too

// What is not differentiated has no backward here.
// WRITTEN:      S = S + k_t v_t^T; x_t = e_t S - r_t x_t^T; o_t = q_t S, read after it
// WRITTEN-NOT:  backward:
