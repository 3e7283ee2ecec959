// Gradients of a delta rule in 16 bits as scans of 16-bit tensors with one writer each: dk is the sum of what q do^T and e dx^T write.
// All but that for dx are cut into segments, which start from states that the scans for u and dx keep. e is k times a number of each row, so
// that scans read k: what is removed, dx where it is a key, and products of e's scan are multiplied by that number.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{functions=bwd apart=true}' | FileCheck %s

// CHECK-LABEL: func.func @attention_bwd(
// CHECK:         %[[U:.*]]:2 = "attn.linear_attention"(%q, %k, %v,
// CHECK:         }) {{{.*}}entering{{.*}}interval = 512{{.*}}output = "values", outputs = ["states"]{{.*}} -> (tensor<?x?x?x64xbf16>,
// CHECK:         %[[DQ:.*]]:3 = "attn.linear_attention"(%[[DO:.*]], %[[U]]#0, %k, {{.*}}, %[[U]]#1,
// CHECK-NOT:     crossing
// CHECK:         }) {{{.*}}segment = 512 : i64, starts
// CHECK:         %[[DX:.*]]:3 = "attn.linear_attention"(%k, %[[Q:.*]], %[[DO]],
// CHECK:           "attn.erase"(%k, %k)
// CHECK:           "attn.remove"()
// CHECK:             tensor.extract %{{.*}} : tensor<?x?x?xf32>
// CHECK:         }) {{{.*}}entering{{.*}}output = "values", outputs = ["final_state", "states"]
// CHECK:         %[[DE:.*]]:2 = "attn.linear_attention"(%[[DX]]#0, %[[U]]#0, %k, {{.*}}, %k)
// CHECK:         }) {{{.*}}output = "decayed", outputs = ["products"]
// CHECK:         %[[DK:.*]]:3 = "attn.linear_attention"(%[[U]]#0, %[[DO]], %[[Q]], {{.*}}, %[[DX]]#2,
// CHECK:         }) {{{.*}}outputs = ["products", "states"]
// CHECK:         %[[DW:.*]]:3 = "attn.linear_attention"(%[[U]]#0, %[[DX]]#0, %k,
// CHECK:           "attn.key"()
// CHECK:             tensor.extract %{{.*}} : tensor<?x?x?xf32>
// CHECK:         }) {{{.*}}output = "decayed", outputs = ["products", "states"]
// CHECK:         %[[SHARES:.*]] = "attn.elements"(%[[DE]]#1)
// CHECK:         %[[OF_E:.*]] = "attn.collect"(%[[SHARES]])
// CHECK:         "attn.decay_gradient_sum"(%[[DQ]]#1, %[[OF_E]], %[[DK]]#1, %[[DW]]#1, %[[DQ]]#2, %[[DK]]#2, %[[DW]]#2) {interval = 512
// CHECK:         %[[SUM:.*]] = "attn.elements"(%[[DE]]#0)
// CHECK:           tensor.extract %[[DK]]#0
// CHECK:           tensor.extract %[[DW]]#0
// CHECK:         %[[OF_K:.*]] = "attn.collect"(%[[SUM]])
// CHECK:         "attn.head_sum"(%[[OF_K]], %k)

// They agree with differences of the function, in chunks, too.
// RUN: attn-run %inputs/linear/gated-delta-half.mlir --q-len 7 -p 'attn-differentiate{apart=true interval=4},attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME
// SAME: PASS

// Erase keys that are something else are made once, and read.
// RUN: sed 's/e = arith.mulf .x, .share/e = math.absf \%x/' %inputs/linear/gated-delta-half.mlir | attn-opt - -p 'attn-differentiate{functions=bwd apart=true}' | FileCheck %s --check-prefix=OTHER
// OTHER:      "attn.erase"(%k, %[[E:.*]]) ({
// OTHER-NOT:  "attn.remove"
// OTHER:      "attn.linear_attention"(%{{.*}}, %{{.*}}, %[[E]],

// Of inputs of f32, and where another key is removed, they are as without it.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-differentiate{functions=bwd apart=true}' | FileCheck %s --check-prefix=SINGLE
// SINGLE: "attn.write"
