// RUN: attn-opt %inputs/linear/gla.mlir --attn-explain | FileCheck %s
// RUN: attn-opt %inputs/linear/backward-scan.mlir --attn-explain | FileCheck %s --check-prefix=EARLIER
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-chunk-rewrite{chunk=32}' --attn-explain | FileCheck %s --check-prefix=CHUNK
// RUN: attn-opt %inputs/linear/skip.mlir --attn-explain | FileCheck %s --check-prefix=SKIP

// SKIP:           g = g * arg4[h]
// SKIP-NEXT:      o_t = o_t + arg5[h] v_t, with v as it comes

// CHECK:      @attention: attn.linear_attention
// CHECK-NEXT:   recurrence, towards later positions
// CHECK-NEXT:     S = diag(exp(g_t)) S + k_t v_t^T; o_t = q_t S
// CHECK:        derivation
// CHECK-NEXT:     log decays add up
// CHECK:        chunked form, chunks first to last
// CHECK-NEXT:     o_t = output_decay q_t S + sum over s <= t of decay_mask (q_t . k_s) v_s
// CHECK-NEXT:     S = chunk_decay S + sum over s of input_decay k_s v_s^T
// CHECK-NEXT:     chunk_decay = exp(total)
// CHECK-NEXT:     input_decay = exp(total - prefix)
// CHECK-NEXT:     output_decay = exp(prefix)
// CHECK-NEXT:     decay_mask = exp(prefix_t - prefix_s)
// CHECK-NEXT:     every channel of the keys has factors of its own
// CHECK:        confirmed in float64, chunk by chunk against the recurrence: {{[0-9]+}} values, largest relative error {{[0-9].[0-9]e-1[0-9]}}
// CHECK:        backward
// CHECK-NEXT:     dq: the same chunk scan with do, v, k in place of q, k, v; towards earlier positions
// CHECK-NEXT:     d(g_j): sum over r >= j of q_r . dq_r - k_r . dk_r
// CHECK:          confirmed in float64 by differences of the recurrence: {{[0-9]+}} gradients, largest relative error {{[0-9].[0-9]e-[01][0-9]}}

// EARLIER:      recurrence, towards earlier positions
// EARLIER-NEXT:   S = S + k_t v_t^T; o_t = q_t S; then S = exp(g_t) S
// EARLIER:      chunked form, chunks last to first
// EARLIER:        input_decay = exp(prefix)
// EARLIER-NEXT:   output_decay = exp(total - prefix)
// EARLIER-NEXT:   decay_mask = exp(prefix_s - prefix_t)
// EARLIER-NOT:  backward

// RUN: attn-opt %inputs/linear/simple-gla.mlir --attn-explain | FileCheck %s --check-prefix=SCALE

// SCALE:        dq: the same chunk scan with do, v, k in place of q, k, v; towards earlier positions
// SCALE-NEXT:   the scale of q is a factor of all three: of the pairs, and of what enters the state or, for dq, leaves it

// CHUNK:      @attention: attn.chunk
// CHUNK-NEXT:   g = max(g, -104)
// CHUNK:        input_decay = exp(total - prefix)
// CHUNK-NEXT:   output_decay = exp(prefix) * 0.25
// CHUNK-NEXT:   decay_mask = exp(prefix_t - prefix_s) * 0.25
// CHUNK:        cost: 16 x 8 numbers of state per head; in chunks of 32, 1536 + 512 flops per position and head

// RUN: attn-opt %inputs/linear/row-factors.mlir --attn-explain | FileCheck %s --check-prefix=ROWS

// ROWS:        decay_mask = exp(prefix_t - prefix_s)
// ROWS-NEXT:   what multiplies rows of q is a part of output_decay and decay_mask
// ROWS-NEXT:   what multiplies rows of k is a part of input_decay and decay_mask
// ROWS-NEXT:   what multiplies rows of v is a part of input_decay and decay_mask

// RUN: attn-opt %inputs/linear/diagonal-terms.mlir --attn-explain | FileCheck %s --check-prefix=RESULT

// RESULT:      recurrence, towards earlier positions
// RESULT-NEXT:   v = v * 0.5
// RESULT-NEXT:   o = o * arg5[b, h, t]
