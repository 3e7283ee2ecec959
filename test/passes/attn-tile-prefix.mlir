// Sums of log decays that are wider than the inputs: in f64 for inputs in f32, whose differences are rounded once, and as scores for 16 bits.
// RUN: attn-opt %inputs/linear/mamba2.mlir -p 'attn-chunk-rewrite,nvidia-numerics,attn-tile-chunks,canonicalize,cse' | FileCheck %s --check-prefix=F32
// RUN: attn-opt %inputs/linear/half.mlir -p 'attn-chunk-rewrite,nvidia-numerics,attn-tile-chunks,canonicalize,cse' | FileCheck %s --check-prefix=F16
// RUN: attn-opt %inputs/linear/mamba2.mlir -p 'attn-chunk-rewrite,cpu-numerics,attn-tile-chunks,canonicalize,cse' | FileCheck %s --check-prefix=CARRY

// F32:      %[[SUMS:.*]] = "tile.cumsum"(%{{.*}}) {reverse = false} : (tensor<64xf64>)
// F32:      arith.subf %{{.*}}, %{{.*}} : f64
// F32-NEXT: arith.truncf %{{.*}} : f64 to f32
// F32-NEXT: math.exp

// The factor of a state is exp in f64, and not rounded at all.
// CARRY:      math.exp %{{.*}} : f64
// CARRY:      "tile.dot_rescale"{{.*}} (tensor<64x8xf32>, tensor<64xf32>
// CARRY:      "tile.dot_rescale"{{.*}} (tensor<16x8xf32>, tensor<16xf64>

// F16-NOT: f64
// F16:     "tile.cumsum"(%{{.*}}) {reverse = false} : (tensor<64xf32>)
// F16-NOT: f64

