// Sums over queries that fit into no kernel together: dv becomes a kernel of its own, with the weights and products that it needs. On Hopper
// dk and dv stay together, unless pairs have numbers of their own, as with a dense bias: warpgroups have a weight each. There
// dq of more than 128 columns becomes one, too, unless other ops read it, as the gradient of a function of q does.
// RUN: sed -e 's/x32xf16/x256xf16/g' %inputs/softmax-f16.mlir > %t.256
// RUN: sed -e 's/x32xf16/x128xf16/g' %inputs/softmax-f16.mlir > %t.128
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs,attn-rows-of-pairs{wider=128},attn-simplify' | FileCheck %s --check-prefix=HOPPER
// RUN: sed -e 's/x64xf32/x256xf16/g' %inputs/bias.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true wrt=q+k+v},nvidia-split-pairs,attn-rows-of-pairs{wider=128},attn-simplify' | FileCheck %s --check-prefix=BIASED
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd wrt=q only=true},nvidia-split-pairs,attn-rows-of-pairs{wider=128},attn-simplify' | FileCheck %s --check-prefix=WIDER
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd wrt=q only=true},nvidia-split-pairs,attn-rows-of-pairs{wider=256},attn-simplify' | FileCheck %s --check-prefix=WHOLE
// RUN: sed -e 's/x64xf32/x256xf16/g;s/x32xf32/x256xf16/g' %inputs/query-key-value-mods.mlir | attn-opt -p 'attn-differentiate{functions=bwd wrt=q only=true},nvidia-split-pairs,attn-rows-of-pairs{wider=128}' | FileCheck %s --check-prefix=WHOLE
// RUN: attn-opt %t.128 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs,attn-simplify' | FileCheck %s --check-prefix=WHOLE
// RUN: attn-opt %t.256 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs{arch=sm_80},attn-simplify' | FileCheck %s
// RUN: sed -e 's/xf16/xf32/g' %t.256 | attn-opt -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs' | FileCheck %s --check-prefix=WHOLE
// RUN: attn-opt %t.128 -p 'attn-differentiate{functions=bwd only=true},nvidia-split-pairs{queries=true},attn-rows-of-pairs{all=true},attn-simplify' | FileCheck %s --check-prefix=ROWS
// RUN: attn-run %t.128 -p 'attn-simplify,attn-differentiate{functions=fwd+bwd},nvidia-split-pairs{queries=true},attn-rows-of-pairs{all=true},attn-simplify' | FileCheck %s --check-prefix=NUMBERS
// RUN: not attn-opt %t.256 -p 'nvidia-split-pairs{arch=sm_70}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: attn-run %t.256 -p 'attn-simplify,attn-differentiate{functions=fwd+bwd},nvidia-split-pairs,attn-rows-of-pairs{wider=128},attn-simplify' | FileCheck %s --check-prefix=NUMBERS

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

// HOPPER:        %[[BOTH:[0-9]+]] = "attn.pairs"() ({
// HOPPER-NOT:    "attn.pairs"() ({
// HOPPER-NOT:    attn.query_sum
// HOPPER-DAG:    "attn.attention"(%{{[a-z]+}}, %[[K:[a-z]+]], %[[K]]) ({
// HOPPER-DAG:    "attn.key_sum"(%[[BOTH]], %{{.*}}) {weights = array<i64: 0>}
// HOPPER-DAG:    "attn.key_sum"(%[[BOTH]], %{{.*}}) {weights = array<i64: 1>}

// BIASED:        %[[FOR_V:[0-9]+]] = "attn.pairs"() ({
// BIASED:        %[[FOR_K:[0-9]+]] = "attn.pairs"() ({
// BIASED-DAG:    "attn.key_sum"(%[[FOR_V]], %{{.*}}) {weights = array<i64: 0>}
// BIASED-DAG:    "attn.key_sum"(%[[FOR_K]], %{{.*}}) {weights = array<i64: 0>}

// WIDER-NOT:     attn.pairs
// WIDER:         %[[DQ:[a-z0-9_]+]] = "attn.attention"(%{{[a-z]+}}, %[[K:[a-z]+]], %[[K]]) ({
// WIDER-NEXT:      "attn.product"
// WIDER:           "attn.mask"
// WIDER:         return %[[DQ]] : tensor<?x?x?x256xf16>

// WHOLE-COUNT-1: "attn.pairs"
// WHOLE-NOT:     "attn.pairs"
// The sum over keys, dq, alone: an attention whose weights are those of pairs.
// ROWS:      %[[PAIRS:[0-9]+]] = "attn.pairs"() ({
// ROWS-NOT:  "attn.query_sum"
// ROWS:      "attn.attention"(%{{[a-z]+}}, %[[K:[a-z]+]], %[[K]]) ({
// ROWS-NEXT:   "attn.product"
// INVALID: error: nvidia-split-pairs: `arch` must be one of sm_90a, sm_80, got 'sm_70'
// NUMBERS: PASS
