// attn-fmha needs no input file; CK's columns, names of kernels, and a message for what is wrong.
// REQUIRES: torch
// RUN: attn-fmha fwd -b 1 -h 4 -h_k 2 -s 17 -s_k 40 -d 32 -mask b:9,0 -lse 1 -warmup 0 -repeat 1 -kname 1 | FileCheck %s
// RUN: attn-fmha --list fwd -d 64 -d_v 32 -bias a -device hip-emulated 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: not attn-fmha fwd -mask b:9 2>&1 | FileCheck %s --check-prefix=GRAMMAR

// CHECK:      [fp16|batch|bhsd] b:1, h:4/2, s:17/40, d:32/32, scale_s:0.176777, bias:n, p_drop:0, lse:1, mask:b(9:0), v:r,
// CHECK-SAME: fmha_fwd_d32_fp16_batch_b32x64_cpu_nlogits_nbias_mb_lse_ndropout, {{[0-9.]+}} ms, {{[0-9.]+}} TFlops, {{[0-9.]+}} GB/s, valid:y

// LIST:      fmha_fwd_d64x32_fp16_batch_b{{[0-9]+x[0-9]+}}_mfma_nlogits_alibi_nmask_nlse_ndropout
// LIST:      fmha_fwd_d64x32_bf16_batch_

// GRAMMAR: attn-fmha: error: -mask is 0, 1, 2, t, b, t:l,r, b:l,r, t:l,r,sink, b:l,r,sink, xt:w, xb:w or g:y,x; got 'b:9'
