// Where channels have decays of their own, chunks may be shorter than those of other kernels.
// RUN: attn-opt %inputs/linear/gla.mlir -p 'attn-chunk-rewrite{chunk=64 channel-chunk=16}' | FileCheck %s --check-prefix=CHANNELS
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-chunk-rewrite{chunk=64 channel-chunk=16}' | FileCheck %s
// RUN: not attn-opt %inputs/linear/gla.mlir -p 'attn-chunk-rewrite{channel-chunk=-1}' 2>&1 | FileCheck %s --check-prefix=INVALID

// CHANNELS: channels = "key", chunk = 16 : i64
// CHECK:    channels = "none", chunk = 64 : i64
// INVALID:  attn-chunk-rewrite: chunk must be positive, got -1
