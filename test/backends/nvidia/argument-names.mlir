// Arguments keep their names, but for words of C++, functions that are called, and names that the printed code uses itself.
// RUN: attn-translate %s --to cuda | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK-LABEL: attention(
// CHECK:         float *__restrict__ slope,
// CHECK:         float *__restrict__ default_2,
// CHECK:         float *__restrict__ pairs_2,
// CHECK:         float *__restrict__ max_2,
// CHECK:         const int pairs = {{.*}}, programs =
// CHECK:         slope[head * slope_s0]
// CHECK:         default_2[head * default_2_s0]

func.func @attention(%q: !t, %k: !t, %v: !t, %slope: tensor<?xf32> loc("slope"), %default: tensor<?xf32> loc("default"),
                     %pairs: tensor<?xf32> loc("pairs"), %max: tensor<?xf32> loc("max")) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %x0 = tensor.extract %slope[%h] : tensor<?xf32>
      %x1 = tensor.extract %default[%h] : tensor<?xf32>
      %x2 = tensor.extract %pairs[%h] : tensor<?xf32>
      %x3 = tensor.extract %max[%h] : tensor<?xf32>
      %y0 = arith.mulf %s, %x0 : f32
      %y1 = arith.mulf %y0, %x1 : f32
      %y2 = arith.mulf %y1, %x2 : f32
      %y3 = arith.mulf %y2, %x3 : f32
      "attn.yield"(%y3) : (f32) -> ()
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
