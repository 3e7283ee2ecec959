// Where terms as large as scores cancel, <do, o> with rounded weights is too rough in 16 bits: the sum over keys is taken instead.
// RUN: attn-opt %s --split-input-file -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s

// CHECK-LABEL: @half_bwd(
// CHECK-NOT:     attn.row_dot
// CHECK:         %[[SWEPT:.*]]:2 = "attn.attention"(%q, %k, %k)
// CHECK:           "attn.product"(%do, %v)
// CHECK:           %[[DELTA:.*]] = "attn.reduce"({{.*}}) {kind = "sum"}
// CHECK:           "attn.yield"({{.*}}, %[[DELTA]])
// CHECK:         "attn.pairs"
// CHECK:           tensor.extract %[[SWEPT]]#1
!t = tensor<?x?x?x8xf16>
func.func @half(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %w = arith.mulf %s, %e : f32
      %p = arith.divf %w, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

// CHECK-LABEL: @single_bwd(
// CHECK:         "attn.row_dot"(%do, %o)
!t = tensor<?x?x?x8xf32>
func.func @single(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %w = arith.mulf %s, %e : f32
      %p = arith.divf %w, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
