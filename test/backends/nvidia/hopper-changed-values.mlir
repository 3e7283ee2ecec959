// Values that a function changes: rows past the last key stay zero, because a weight of zero times infinity would be no number.
// RUN: attn-translate %s --to cuda | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK-LABEL: attention(
// CHECK:         for (int kv_{{.*}} += 128) {
// CHECK:           // Each thread changes pairs of columns.
// CHECK:             at[0] = [[WHOLE:h_[0-9]+]];
// CHECK:         for (int kv_{{.*}} += 128) {
// CHECK:           const int [[COUNT:n_[0-9]+]] = min({{.*}}, 128);
// CHECK:             at[0] = at_row < [[COUNT]] ? {{.*}} : __half(0.0f);
// CHECK:           attn::fence_proxy_async();

func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h_kv: index, %kv_idx: index, %d: index):
      %one = arith.constant 1.0 : f32
      %y = arith.divf %one, %x : f32
      "attn.yield"(%y) : (f32) -> ()
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
