// A function that holds one attention op and returns what it makes, in order, stays as it is and gets the shapes itself.
// RUN: attn-opt %inputs/derivatives/softmax-tangent.mlir -p attn-outline | FileCheck %s
// RUN: attn-opt %s -p attn-outline | FileCheck %s --check-prefix=ORDER

// CHECK:      func.func @attention_jvp(
// CHECK-SAME:   attributes {shapes = @attention_jvp_shapes}
// CHECK-NOT:  call

!t = tensor<?x?x?x8xf32>
!row = tensor<?x?x?xf32>

// Another order of the results needs a call. Sizes are computed where they are used.
// ORDER:      func.func private @swapped_0_attention(%[[Q:[a-z0-9]+]]: {{.*}}, %{{.*}}: {{.*}}, %{{.*}}: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
// ORDER:        %[[SIZE:[a-z0-9]+]] = tensor.dim %[[Q]], %c2
// ORDER:        "attn.attention"
// ORDER:          arith.index_cast %[[SIZE]]
// ORDER:      func.func @swapped(
// ORDER-NEXT:   %[[ALL:[a-z0-9]+]]:2 = call @swapped_0_attention({{.*}})
// ORDER-NEXT:   return %[[ALL]]#1, %[[ALL]]#0
func.func @swapped(%q: !t, %k: !t, %v: !t, %unused: tensor<?xf32>) -> (!row, !t) {
  %c2 = arith.constant 2 : index
  %length = tensor.dim %q, %c2 : !t
  %o, %sum = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %n = arith.index_cast %length : index to i64
      %count = arith.sitofp %n : i64 to f32
      %p = arith.divf %s, %count : f32
      %total = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      "attn.yield"(%p, %total) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["sum"]} : (!t, !t, !t) -> (!t, !row)
  return %sum, %o : !row, !t
}
