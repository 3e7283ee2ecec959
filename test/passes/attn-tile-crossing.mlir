// Gradients of decays without differences: the forward scan sums up what comes from before the chunk, and its own pairs.
// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-differentiate{functions=bwd wrt=arg3 only=true interval=64 crossing=true},attn-outline{keep-hosts=false},attn-chunk-rewrite,cpu-numerics,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention_bwd_{{.*}}linear_attention
// CHECK:         scf.for {{.*}} iter_args(%[[S:.*]] = %{{.*}})
// CHECK:           "tile.store"(%[[S]], %states
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

// The backward scan sums up what goes beyond the chunk, for each position from all before it, and adds what it reads: of what comes from
// before the chunk what goes to its positions, and by the state what goes beyond. It stores the gradient, neither products nor states.
// CHECK-LABEL: func.func @attention_bwd_{{.*}}linear_attention
// CHECK-SAME:    %[[A:[^:]*]]: memref<?x?x?xf32, strided<[?, ?, ?]>>, %[[STATES:[^:]*]]: memref<?x?x?x8xf32, strided<[?, ?, ?, ?]>>, %d_log_decay
// CHECK:         scf.for {{.*}} iter_args(%[[E:.*]] = %{{.*}})
// CHECK:           %[[CARRY:.*]] = "tile.map"(%c16)
// CHECK:           %[[S:.*]] = "tile.load"(%[[STATES]]
// CHECK:           %[[ROWS:.*]] = "tile.map"(%c16, %c8)
// CHECK-DAG:         tensor.extract %[[S]]
// CHECK-DAG:         tensor.extract %[[E]]
// CHECK:           reductions = ["sum"]
// CHECK:           %[[PASSING:.*]] = "tile.map"(%c1, %c16)
// CHECK-DAG:         tensor.extract %[[ROWS]]
// CHECK-DAG:         tensor.extract %[[CARRY]]
// CHECK:           %[[UP_TO:.*]] = "tile.cumsum"(%[[BEYOND:.*]]) {reverse = false}
// CHECK-NEXT:      %[[BEFORE:.*]] = "tile.map"(%c64)
// CHECK-DAG:         tensor.extract %[[UP_TO]]
// CHECK-DAG:         tensor.extract %[[BEYOND]]
// CHECK:             arith.subf
// CHECK:           %[[D:.*]] = "tile.map"(%c64)
// CHECK-DAG:         tensor.extract %[[BEFORE]]
// CHECK-DAG:         memref.load %[[A]]
// CHECK-DAG:         tensor.extract %[[PASSING]]
// CHECK:           "tile.store"(%[[D]], %d_log_decay
// CHECK-NOT:       tile.store
// CHECK-LABEL: func.func
