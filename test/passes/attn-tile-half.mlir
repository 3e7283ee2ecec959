// Weights are rounded to the type of v for the second product; scores and sums stay f32.
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK:       "tile.load"(%q, {{.*}} -> tensor<64x32xf16>
// CHECK:       "tile.dot"({{.*}} : (tensor<64x32xf16>, tensor<?x32xf16>) -> tensor<64x?xf32>
// CHECK:         arith.maximumf
// CHECK:         "tile.yield"
// CHECK:         %[[E:[a-z0-9]+]] = math.exp %{{[0-9]+}}
// CHECK-NEXT:    %[[P:[0-9]+]] = arith.truncf %[[E]] : f32 to f16
// CHECK-NEXT:    "tile.yield"(%[[P]], %[[E]]) {{.*}} : (f16, f32)
// CHECK:       {reductions = ["sum"], {{.*}} -> (tensor<64x?xf16>, tensor<64xf32>)
// CHECK:       "tile.dot_rescale"({{.*}} -> tensor<64x32xf32>
// CHECK:         arith.truncf
// CHECK:       "tile.store"({{.*}} : (tensor<64x32xf16>,
