// A quotient of positions that a rounding reads is rounded once, in spite of -use_fast_math, in whole blocks of keys and in the last one.
// RUN: attn-translate %s --to cuda | FileCheck %s

// CHECK:       float exact_quotient(float a, float b)
// CHECK:         return __fdiv_rn(a, b);
// CHECK:       floorf({{.*}}exact_quotient({{.*}}, 41.0f))
// CHECK:       floorf({{.*}}exact_quotient({{.*}}, 41.0f))
!t = tensor<?x?x?x64xf16>
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %distance = arith.subi %kv_idx, %q_idx : index
      %integer = arith.index_cast %distance : index to i64
      %float = arith.sitofp %integer : i64 to f32
      %period = arith.constant 41.0 : f32
      %quotient = arith.divf %float, %period : f32
      %floor = math.floor %quotient : f32
      %one = arith.constant 1.0 : f32
      %present = arith.cmpf olt, %floor, %one : f32
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
