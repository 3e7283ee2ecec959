// Sums over queries that fit into no kernel together: dv becomes a kernel of its own, with the weights and products that it needs.
// RUN: sed -e 's/x32xf16/x256xf16/g' %inputs/softmax-f16.mlir > %t.256
// RUN: sed -e 's/x32xf16/x128xf16/g' %inputs/softmax-f16.mlir > %t.128
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs,attn-simplify' | FileCheck %s
// RUN: attn-opt %t.128 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs,attn-simplify' | FileCheck %s --check-prefix=WHOLE
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs{arch=sm_80},attn-simplify' | FileCheck %s
// RUN: sed -e 's/xf16/xf32/g' %t.256 | attn-opt -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs' | FileCheck %s --check-prefix=WHOLE
// RUN: attn-opt %t.128 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs{queries=true},attn-rows-of-pairs{all=true},attn-simplify' | FileCheck %s --check-prefix=ROWS
// RUN: attn-run %t.128 -p 'attn-simplify,attn-differentiate{functions=fwd+bwd},nvidia-split-pairs{queries=true},attn-rows-of-pairs{all=true},attn-simplify' | FileCheck %s --check-prefix=NUMBERS
// RUN: not attn-opt %t.256 -p 'nvidia-split-pairs{arch=sm_70}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: attn-run %t.256 -p 'attn-simplify,attn-differentiate{functions=fwd+bwd},nvidia-split-pairs,attn-simplify' | FileCheck %s --check-prefix=NUMBERS

// CHECK:      %[[FOR_V:[0-9]+]] = "attn.pairs"() ({
// CHECK-NEXT:   "attn.product"(%[[Q:[a-z]+]], %[[K:[a-z]+]])
// CHECK-NOT:    attn.product
// CHECK:        "attn.pair"() ({
// CHECK-NEXT:   ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK:          "attn.yield"(%{{.*}}) : (f32) -> ()
// CHECK:      %[[REST:[0-9]+]] = "attn.pairs"() ({
// CHECK-NEXT:   "attn.product"(%[[Q]], %[[K]])
// CHECK-NEXT:   "attn.product"(%[[DO:[a-z]+]], %{{[a-z]+}})
// CHECK:          "attn.yield"(%{{.*}}) : (f32) -> ()
// CHECK-DAG:  "attn.key_sum"(%[[FOR_V]], %[[DO]]) {weights = array<i64: 0>}
// CHECK-DAG:  "attn.query_sum"(%[[REST]], %[[K]]) {weights = array<i64: 0>}
// CHECK-DAG:  "attn.key_sum"(%[[REST]], %[[Q]]) {weights = array<i64: 0>}

// WHOLE-COUNT-1: "attn.pairs"
// WHOLE-NOT:     "attn.pairs"
// The sum over keys, dq, alone: an attention whose weights are those of pairs.
// ROWS:      %[[PAIRS:[0-9]+]] = "attn.pairs"() ({
// ROWS-NOT:  "attn.query_sum"
// ROWS:      "attn.attention"(%{{[a-z]+}}, %[[K:[a-z]+]], %[[K]]) ({
// ROWS-NEXT:   "attn.product"
// INVALID: error: nvidia-split-pairs: `arch` must be one of sm_90a, sm_80, got 'sm_70'
// NUMBERS: PASS
