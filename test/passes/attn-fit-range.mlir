// Weights that are rounded to 8 bits are multiplied by the largest power of two that keeps them finite, accumulators by its inverse.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite,attn-fit-range' | FileCheck %s

// exp(s - max) is at most 1: 448 has room for 256 of it. The sum, and its rescaling, stay as they were.
// CHECK-LABEL: @attention
// CHECK:       "attn.step"
// CHECK:         %[[NEW:.*]] = arith.maximumf
// CHECK:         %[[RESCALE:.*]] = math.exp
// CHECK:         %[[WEIGHT:.*]] = math.exp
// CHECK:         %[[SUM:.*]] = arith.addf
// CHECK:         %[[SCALE:.*]] = arith.constant 2.560000e+02 : f32
// CHECK:         %[[SCALED:.*]] = arith.mulf %[[WEIGHT]], %[[SCALE]]
// CHECK:         "attn.yield"(%[[NEW]], %[[SUM]], %[[SCALED]], %[[RESCALE]])
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:[^:]*]]: f32,
// CHECK-NEXT:    %[[INVERSE:.*]] = arith.constant 3.906250e-03 : f32
// CHECK-NEXT:    %[[O:.*]] = arith.mulf %[[ACC]], %[[INVERSE]]
// CHECK-NEXT:    arith.divf %[[O]]
func.func @attention(%q: tensor<?x?x?x64xf8E4M3FN>, %k: tensor<?x?x?x64xf8E4M3FN>, %v: tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}

// -----

// Of 3 tanh(s) the weight is tanh(s), at most 1 on both sides: 57344 has room for 2^15 of it. An output of 8 bits is clamped, NaN stays.
// CHECK-LABEL: @attention
// CHECK:       "attn.step"
// CHECK:         arith.constant 3.276800e+04 : f32
// CHECK:       "attn.finalize"
// CHECK:         %[[MOST:.*]] = arith.constant 5.734400e+04 : f32
// CHECK-NEXT:    %[[BELOW:.*]] = arith.minimumf %{{.*}}, %[[MOST]]
// CHECK-NEXT:    %[[BOTH:.*]] = arith.maximumf %[[BELOW]], %{{.*}}
// CHECK-NEXT:    "attn.yield"(%[[BOTH]])
func.func @attention(%q: tensor<?x?x?x64xf8E5M2>, %k: tensor<?x?x?x64xf8E5M2>, %v: tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xf8E5M2> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %three = arith.constant 3.0 : f32
      %t = math.tanh %s : f32
      %p = arith.mulf %t, %three : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xf8E5M2>
  return %o : tensor<?x?x?x64xf8E5M2>
}

// -----

// Weights keep the 16 bits of the queries: nothing to do.
// CHECK-LABEL: @attention
// CHECK-NOT:   2.560000e+02
// CHECK-NOT:   arith.minimumf
func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf8E4M3FN>, %v: tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf16>, tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xf16>
  return %o : tensor<?x?x?x64xf16>
}
