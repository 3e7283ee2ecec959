// What flows back through another channel is computed there: gradients of q are made element by element, without a scatter.
// RUN: attn-opt %inputs/rotary.mlir -p 'attn-differentiate{functions=bwd wrt=q+k only=true},attn-simplify,canonicalize,cse' | FileCheck %s
// RUN: attn-run %inputs/rotary.mlir -p 'attn-differentiate,attn-simplify,attn-outline' --after-each | FileCheck %s --check-prefix=SAME
// RUN: attn-run %inputs/rotary.mlir -p 'attn-differentiate{functions=jvp}' --after-each | FileCheck %s --check-prefix=TANGENT

// CHECK-LABEL: @attention_bwd
// CHECK:         "attn.elements"(%[[Q:[a-z0-9]+]])
// CHECK:         "attn.elements"(%[[K:[a-z0-9]+]])
// CHECK:         %[[DX:.*]] = "attn.query_sum"
// CHECK:         "attn.elements"(%[[Q]])
// CHECK:         ^bb0(%[[B:[a-z0-9]+]]: index, %[[H:[a-z0-9]+]]: index, %[[I:[a-z0-9]+]]: index, %[[D:[a-z0-9]+]]: index):
// CHECK-DAG:       tensor.extract %[[DX]][%[[B]], %[[H]], %[[I]], %[[D]]]
// CHECK-DAG:       tensor.extract %[[DX]][%[[B]], %[[H]], %[[I]], %[[PARTNER:[0-9]+]]]
// CHECK:           arith.addf
// CHECK-NOT:     "attn.scatter"

// SAME-NOT:    FAIL
// SAME:        @attention_bwd {{.*}} by differences: dq: abs {{.*}}e-{{0[6-9]|1[0-9]}} rel
// SAME:        PASS

// TANGENT:     PASS
