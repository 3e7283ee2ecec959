// Gradients of decays without differences: the forward sweep sums up what comes from before the chunk, and its own pairs.
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd wrt=arg3 only=true interval=64 crossing=true},attn-outline{keep-hosts=false},attn-chunk-rewrite,attn-tile{prefix=f64},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention_bwd_{{.*}}linear_attention
// CHECK:         scf.for {{.*}} iter_args(%[[S:.*]] = %{{.*}})
// CHECK:           %[[FROM_STATE:.*]] = "tile.dot"(%{{.*}}, %{{.*}}) {transpose_b = true}
// CHECK:           %[[SUMS:.*]] = "tile.map"(%c64, %c16)
// CHECK:             tensor.extract %[[FROM_STATE]]
// CHECK:           %[[PAIRS:.*]] = "tile.map"(%c64, %c64)
// CHECK:             arith.cmpi sgt
// CHECK:           %[[REACHING:.*]] = "tile.cumsum"(%[[PAIRS]]) {reverse = true} : (tensor<64x64xf32>)
// CHECK:           %[[OWN:.*]] = "tile.map"(%c64, %c64)
// CHECK:             %[[BEFORE:.*]] = arith.cmpi slt
// CHECK:             tensor.extract %[[REACHING]]
// CHECK:           reductions = ["sum"]
// CHECK:           %[[REST:.*]] = "tile.cumsum"(%{{.*}}) {reverse = true} : (tensor<64xf64>)
// CHECK:           %[[PRODUCTS:.*]] = "tile.map"(%c64)
// CHECK-DAG:         tensor.extract %[[OWN]]
// CHECK-DAG:         tensor.extract %[[REST]]
// CHECK:             arith.addf
// CHECK:           "tile.store"(%[[PRODUCTS]]
// The state of before the chunk as seen from its end.
// CHECK:           %[[KEPT:.*]] = "tile.map"(%c16, %c8)
// CHECK:             tensor.extract %[[S]]
// CHECK:             arith.mulf
// CHECK:           "tile.store"(%[[KEPT]]

// The backward sweep sums up what goes beyond the chunk, for each position from all before it.
// CHECK-LABEL: func.func @attention_bwd_{{.*}}linear_attention
// CHECK:           "tile.store"(%[[E:.*]], %{{.*}}) : (tensor<16x8xf32>
// CHECK:           reductions = ["sum"]
// CHECK:           %[[UP_TO:.*]] = "tile.cumsum"(%[[BEYOND:.*]]) {reverse = false}
// CHECK-NEXT:      %[[BEFORE:.*]] = "tile.map"(%c64)
// CHECK-DAG:         tensor.extract %[[UP_TO]]
// CHECK-DAG:         tensor.extract %[[BEYOND]]
// CHECK:             arith.subf
// CHECK:           "tile.store"(%[[BEFORE]]

// CHECK-LABEL: func.func @attention_bwd_{{.*}}decay_gradient
// CHECK-NOT:       tile.cumsum
// CHECK:           arith.addf
// CHECK:           "tile.store"
