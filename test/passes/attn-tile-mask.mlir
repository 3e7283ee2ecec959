// With bounds, a loop over full blocks without the mask, and one over partial blocks with it.
// RUN: attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile,canonicalize,cse' | FileCheck %s
// Without bounds, every block is partial.
// RUN: attn-opt %inputs/plain-softmax.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=NOMASK

// CHECK-DAG:   %[[MINUS_INF:.*]] = arith.constant 0xFF800000 : f32
// CHECK:       %[[FULL_END:[0-9]+]] = arith.minsi %{{[0-9]+}}, %dim : index
// CHECK-NEXT:  %[[END:[0-9]+]] = arith.minsi %{{[0-9]+}}, %dim : index
// CHECK:       scf.for %{{.*}} = %c0 to %[[FULL_END]] step %c64
// CHECK-NOT:     arith.select
// CHECK:         scf.yield
// CHECK:       scf.for %[[KV:.*]] = %[[FULL_END]] to %[[END]] step %c64
// CHECK:         "tile.map"
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           %[[KV_IDX:.*]] = arith.addi %[[KV]], %[[J]]
// CHECK-NEXT:      %[[PRESENT:.*]] = arith.cmpi sge, %{{.*}}, %[[KV_IDX]]
// One select of the score is enough for softmax: exp(-inf) adds nothing.
// CHECK-NEXT:      %[[MASKED:.*]] = arith.select %[[PRESENT]], %{{.*}}, %[[MINUS_INF]]
// CHECK-NEXT:      "tile.yield"(%[[MASKED]], %[[MASKED]])
// CHECK-NOT:     arith.select
// CHECK:         scf.yield
// CHECK-NOT:   scf.for

// NOMASK:      %[[KV_LEN:.*]] = memref.dim %k, %c2
// NOMASK:      scf.for %{{.*}} = %c0 to %[[KV_LEN]] step %c64
// NOMASK-NOT:    arith.select
// NOMASK-NOT:  scf.for
