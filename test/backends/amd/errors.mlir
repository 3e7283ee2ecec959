// What no kernel for AMD GPUs takes: the errors say what to do.
// RUN: not attn-translate --to hip %inputs/causal-softmax.mlir 2>&1 | FileCheck %s --check-prefix=F32
// RUN: sed s/x64xf32/x1032xf16/g %inputs/causal-softmax.mlir | not attn-translate --to hip - 2>&1 | FileCheck %s --check-prefix=WIDE
// RUN: sed '1s/ {$/ attributes {tile.choices = {emitter = "hopper"}} {/' %inputs/softmax-f16.mlir | not attn-translate --to hip - 2>&1 | FileCheck %s --check-prefix=EMITTER
// RUN: sed '1s/ {$/ attributes {tile.choices = {emitter = "simt"}} {/' %inputs/softmax-f16.mlir | not attn-translate --to hip - 2>&1 | FileCheck %s --check-prefix=OTHER

// F32:  causal-softmax.mlir:1:1: error: tile-schedule: amd: matrix products take f16 or bf16, not f32: cast q, k and v to one of them, or use the CPU
// WIDE: <stdin>:{{[0-9]+}}:{{[0-9]+}}: error: q has head dimension 1032, and kernels for AMD GPUs take up to 1024: compute on the CPU
// EMITTER: error: tile-schedule: there is no emitter 'hopper' (emitters: chunks, mfma, simt)
// OTHER: error: tile-schedule: the emitter 'simt' does not make this kernel for gfx90a
