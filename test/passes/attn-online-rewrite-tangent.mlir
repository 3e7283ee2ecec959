// The tangent of softmax is one pass: sums of the same weights over the same tensor are kept once, in every type.
// RUN: attn-opt %inputs/derivatives/softmax-tangent.mlir -p 'attn-online-rewrite' | FileCheck %s
// RUN: %PYTHON -c "print(open(r'%inputs/derivatives/softmax-tangent.mlir').read().replace('xf32', 'xf16'))" > %t.mlir
// RUN: attn-opt %t.mlir -p 'attn-online-rewrite' | FileCheck %s --check-prefix=HALF

// CHECK:       %[[O:.*]] = "attn.online"
// CHECK:         "attn.product"
// CHECK:         "attn.product"
// CHECK:         "attn.term"
// CHECK:         "attn.term"
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:[a-z0-9_]+]]: f32, %[[S_DOT:[a-z0-9_]+]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:[a-z0-9_]+]]: f32, %[[L:[a-z0-9_]+]]: f32, %[[L_DOT:[a-z0-9_]+]]: f32):
// CHECK:         %[[M_NEW:[a-z0-9_]+]] = arith.maximumf %[[M]],
// CHECK:         %[[RESCALE:[a-z0-9_]+]] = math.exp
// CHECK:         %[[E:[a-z0-9_]+]] = math.exp
// CHECK:         %[[L_NEW:[a-z0-9_]+]] = arith.addf
// CHECK:         %[[E_DOT:[a-z0-9_]+]] = arith.mulf %[[S_DOT]], %[[E]]
// CHECK:         %[[L_DOT_NEW:[a-z0-9_]+]] = arith.addf
// CHECK-NEXT:    "attn.yield"(%[[M_NEW]], %[[L_NEW]], %[[L_DOT_NEW]], %[[E]], %[[E_DOT]], %[[E]], %[[RESCALE]], %[[RESCALE]], %[[RESCALE]])
// CHECK-NOT:   "attn.step"
// CHECK:       "attn.merge"
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[EV:[a-z0-9_]+]]: f32, %[[E_DOT_V:[a-z0-9_]+]]: f32, %[[E_V_DOT:[a-z0-9_]+]]: f32, {{.*}}, %[[M:[a-z0-9_]+]]: f32, %[[L:[a-z0-9_]+]]: f32, %[[L_DOT:[a-z0-9_]+]]: f32):
// CHECK-NEXT:    %[[PRIMAL:[a-z0-9_]+]] = arith.divf %[[EV]], %[[L]]
// CHECK-NEXT:    %[[MEAN:[a-z0-9_]+]] = arith.divf %[[L_DOT]], %[[L]]
// CHECK-NEXT:    %[[CENTRE:[a-z0-9_]+]] = arith.mulf %[[EV]], %[[MEAN]]
// CHECK-NEXT:    %[[CENTRED:[a-z0-9_]+]] = arith.subf %[[E_DOT_V]], %[[CENTRE]]
// CHECK-NEXT:    %[[SUM:[a-z0-9_]+]] = arith.addf %[[CENTRED]], %[[E_V_DOT]]
// CHECK-NEXT:    %[[TANGENT:[a-z0-9_]+]] = arith.divf %[[SUM]], %[[L]]
// CHECK-NEXT:    "attn.yield"(%[[PRIMAL]], %[[TANGENT]])
// CHECK:       accumulators = 3 : i64, outputs = [], sources = array<i64: 0, 0, 2>
// CHECK:       "attn.output"(%[[O]]) {index = 1 : i64}

// HALF-COUNT-1: "attn.step"
// HALF-NOT:     "attn.step"
// HALF:         accumulators = 3
