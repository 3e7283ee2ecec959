// Gradients of channels' decays: states every 512 positions where scans round nothing but the state, in 16 bits on chips with TMA.
// RUN: attn-opt %inputs/linear/gla-half.mlir -p 'attn-differentiate{wrt=arg3},nvidia-choose-intervals' | FileCheck %s
// RUN: attn-opt %inputs/linear/gla-half.mlir -p 'attn-differentiate{wrt=arg3},nvidia-choose-intervals{arch=sm_80}' | FileCheck %s --check-prefix=FEW
// RUN: sed -e 's/x128/x96/g' %inputs/linear/gla-half.mlir | attn-opt -p 'attn-differentiate{wrt=arg3},nvidia-choose-intervals' | FileCheck %s --check-prefix=FEW
// RUN: not attn-opt %inputs/linear/gla-half.mlir -p 'nvidia-choose-intervals{arch=sm_70}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: attn-opt %inputs/linear/kda.mlir -p 'attn-differentiate{functions=bwd only=true},nvidia-choose-intervals' | FileCheck %s --check-prefix=CROSSING

// CHECK-LABEL: @attention_bwd
// CHECK-COUNT-3: interval = 512 : i64

// FEW-LABEL: @attention_bwd
// FEW-NOT:   interval = 512
// FEW:       interval = 64 : i64

// Intervals of the delta rule are chunks, and four warps share their products.
// CROSSING-NOT: interval = 16
// CROSSING-COUNT-3: interval = 32 : i64

// INVALID: error: nvidia-choose-intervals: `arch` must be one of sm_90a, sm_80, got 'sm_70'
