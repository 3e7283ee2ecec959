// RUN: attn-opt %s --split-input-file -p 'attn-simplify' | FileCheck %s

// Pieces of pairs and elements and the index of a scatter are simplified; products stay.
// CHECK-LABEL: @sums(
// CHECK:         "attn.product"
// CHECK-NEXT:    "attn.pair"() ({
// CHECK-NEXT:    ^bb0(%[[X:[^:]*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:      %[[SQUARE:.*]] = arith.mulf %[[X]], %[[X]] : f32
// CHECK-NEXT:      "attn.yield"(%[[SQUARE]]) : (f32) -> ()
// CHECK:         "attn.scatter"
// CHECK-NEXT:    ^bb0(%{{.*}}: index, %[[H:[^:]*]]: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:      "attn.yield"(%[[H]]) : (index) -> ()
!t = tensor<?x?x?x64xf32>
func.func @sums(%q: !t, %slopes: tensor<?xf32>) -> tensor<?xf32> {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      %two = arith.constant 2.0 : f32
      %square = math.powf %x, %two : f32
      "attn.yield"(%square) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %heads = "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    %unused = arith.addi %i, %j : index
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %heads : tensor<?xf32>
}

// -----

// A score that leaves one of two products out is no identity; one that returns both is.
// CHECK-LABEL: @scores(
// CHECK:         "attn.score"
// CHECK:       @same(
// CHECK-NOT:     "attn.score"
!t = tensor<?x?x?x64xf32>
func.func @scores(%q: !t) -> !t {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.score"() ({
    ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
func.func @same(%q: !t) -> !t {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    "attn.score"() ({
    ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x, %y) : (f32, f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %t: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
