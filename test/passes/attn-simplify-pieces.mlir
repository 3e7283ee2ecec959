// Mods that return their input and masks that keep everything disappear, alone and among upstream passes.
// RUN: attn-opt %s -p 'attn-simplify' | FileCheck %s
// RUN: attn-opt %s -p 'canonicalize,cse,attn-simplify,canonicalize,cse' | FileCheck %s

// CHECK:     "attn.attention"
// CHECK-NOT: "attn.query"
// CHECK-NOT: "attn.score"
// CHECK-NOT: "attn.mask"
// CHECK:     "attn.value"
// CHECK:     "attn.row"
// CHECK-NOT: "attn.mask"
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %always = arith.constant true
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %d: index):
      %one = arith.constant 1.0 : f32
      %y = arith.divf %x, %one : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%score) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      %1 = arith.ori %0, %always : i1
      "attn.yield"(%1) : (i1) -> ()
    }) : () -> ()
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %kv_idx: index, %d: index):
      %y = arith.addf %x, %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
