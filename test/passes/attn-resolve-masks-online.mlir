// RUN: attn-opt %S/../Inputs/online-causal-softmax.mlir -p attn-resolve-masks | FileCheck %s
// RUN: attn-opt %S/../Inputs/online-causal-softmax.mlir -p attn-resolve-masks,attn-resolve-masks | FileCheck %s

// An online form is resolved as well. Bounds that are there already are made again, from the mask; the size of k that the
// function has already is used.

// CHECK:       func.func @attention(%{{[^:]*}}: {{[^,]*}}, %[[K:[^:]*]]:
// CHECK:         %[[SKV:.*]] = tensor.dim %[[K]],
// CHECK-NOT:     tensor.dim
// CHECK:         "attn.online"
// CHECK:         "attn.mask"
// CHECK:         "attn.bounds"
// CHECK:           %[[FULL_END:.*]] = arith.minsi %{{.*}}, %[[SKV]] : index
// CHECK:           "attn.yield"(%{{.*}}, %{{.*}}, %[[FULL_END]], %{{.*}}) : (index, index, index, index) -> ()
// CHECK-NOT:     "attn.bounds"
// CHECK:         "attn.init"
// CHECK:         rows_nonempty = true
