// attn-generate needs no input file: names by patterns, a project of sources, and a message for what is wrong.
// REQUIRES: torch
// RUN: attn-generate --list --filter 'fmha_fwd_d64_*_softmax_nlogits_nbias_mt_*,fmha_bwd_d32_*_relu_*_mb_*' | FileCheck %s --check-prefix=LIST
// RUN: attn-generate --filter fmha_fwd_d64_bf16_batch_bhsd_softmax_nlogits_bias1_mblr_lse_ndropout --target gfx90a --out %t -j1 | FileCheck %s
// RUN: FileCheck %s --check-prefix=MANIFEST --input-file=%t/manifest.json
// RUN: FileCheck %s --check-prefix=TABLES --input-file=%t/instances/fmha_fwd_d64_bf16_batch_bhsd_softmax_nlogits_bias1_mblr_lse_ndropout.cpp
// RUN: not attn-generate --list --filter 'fmha_fwd_d63_*' 2>&1 | FileCheck %s --check-prefix=NONE

// LIST:      fmha_fwd_d64_fp32_batch_bhsd_softmax_nlogits_nbias_mt_nlse_ndropout
// LIST:      fmha_fwd_d64_fp32_batch_bshd_softmax_nlogits_nbias_mt_lse_dropout
// LIST-NOT:  d32_fp32_batch_bhsd_softmax
// LIST-NOT:  d64_fp32_batch_bhsd_relu

// CHECK: 1 instances, {{[0-9]+}} files

// MANIFEST:      "target": "gfx90a"
// MANIFEST:      "name": "fmha_fwd_d64_bf16_batch_bhsd_softmax_nlogits_bias1_mblr_lse_ndropout"
// MANIFEST:      "dtype": "bf16"
// MANIFEST:      "mask": "blr"
// MANIFEST:      "bias": "e:1"
// MANIFEST:      "arguments": [
// MANIFEST-NEXT: "q"
// MANIFEST:      "scale"
// MANIFEST-NEXT: "bias"
// MANIFEST-NEXT: "left"
// MANIFEST:      "file": "kernels/fmha_fwd_d64_bf16_batch_bhsd_softmax_nlogits_bias1_mblr_lse_ndropout.online_attention.hip"
// MANIFEST:      "sha256": "{{[0-9a-f]+}}"
// MANIFEST:      "symbol": "[[ENTRY:[a-z_]+]]"

// TABLES:      static const attn::Kernel online_{{.*}} = {"attention", fmha_fwd_{{.*}}_code, 256
// TABLES:      static const attn::Role roles[] = {attn::SCALE, attn::BIAS, attn::LEFT, attn::RIGHT};
// TABLES:      .incbin

// NONE: attn-generate: error: the filter 'fmha_fwd_d63_*' matches none of {{[0-9]+}} instances
