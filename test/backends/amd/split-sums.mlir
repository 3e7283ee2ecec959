// Sums over keys that are too wide to be made together get pairs of their own, with the weights and products that they need.
// RUN: sed 's/x64xf32/x256xf16/g' %inputs/plain-softmax.mlir | attn-opt - -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},amd-split-sums' | FileCheck %s
// RUN: sed 's/x64xf32/x192xf16/g' %inputs/plain-softmax.mlir | attn-opt - -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},amd-split-sums' | FileCheck %s --check-prefix=ONE

// CHECK:       %[[P:.*]] = "attn.pairs"() ({
// CHECK-NEXT:    "attn.product"(%q, %k)
// CHECK-NEXT:    "attn.pair"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: f32, %{{[^:]*}}: index,
// CHECK:           "attn.yield"(%{{[^,]*}}) : (f32) -> ()
// CHECK:       %[[DS:.*]] = "attn.pairs"() ({
// CHECK-NEXT:    "attn.product"(%q, %k)
// CHECK-NEXT:    "attn.product"(%do, %v)
// CHECK:           "attn.yield"(%{{[^,]*}}) : (f32) -> ()
// CHECK:       "attn.key_sum"(%[[P]], %do) {weights = array<i64: 0>}
// CHECK-NEXT:  "attn.query_sum"(%[[DS]], %k) {weights = array<i64: 0>}
// CHECK-NEXT:  "attn.key_sum"(%[[DS]], %q) {weights = array<i64: 0>}

// ONE-COUNT-1: "attn.pairs"
// ONE-NOT:     "attn.pairs"
