// In 16 bits a layer-norm row gets a second pass instead of two accumulators that cancel.
// RUN: attn-opt %inputs/layer-norm.mlir -p 'attn-online-rewrite' | FileCheck %s --check-prefix=SINGLE
// RUN: %PYTHON -c "print(open(r'%inputs/layer-norm.mlir').read().replace('x64xf32', 'x64xf16'))" > %t.mlir
// RUN: attn-opt %t.mlir -p 'attn-online-rewrite' | FileCheck %s --check-prefix=HALF
// RUN: attn-opt %t.mlir --attn-explain | FileCheck %s --check-prefix=EXPLAIN

// SINGLE-COUNT-1: "attn.step"
// SINGLE-NOT:     "attn.step"
// SINGLE:         accumulators = 2

// HALF-COUNT-2:   "attn.step"
// HALF-NOT:       "attn.step"
// HALF:           accumulators = 1

// EXPLAIN:        passes over keys: 2
