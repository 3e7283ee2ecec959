// Keys in parts, and what combines their partial results.
// RUN: attn-opt %s | attn-opt | FileCheck %s

// CHECK:       func.func @attention_parts
// CHECK:       "attn.parts"(%{{.*}}, %{{.*}}) : (index, index) -> ()
func.func @attention_parts(%q: tensor<?x?x?x8xbf16>, %k: tensor<?x?x?x8xbf16>, %v: tensor<?x?x?x8xbf16>, %parts: index, %keys: index) -> tensor<?x?x?x8xf32> {
  %acc = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.parts"(%parts, %keys) : (index, index) -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>) -> tensor<?x?x?x8xf32>
  return %acc : tensor<?x?x?x8xf32>
}

// CHECK:       func.func @attention_combine
// CHECK:       "attn.combine"(%{{.*}}, %{{.*}}) ({
// CHECK-NEXT:    "attn.carried"(%{{.*}}) : (tensor<?x?x?xf32>) -> ()
// CHECK:         "attn.merge"() ({
// CHECK:       accumulators = 1 : i64, outputs = ["lse"]
func.func @attention_combine(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> (tensor<?x?x?x8xbf16>, tensor<?x?x?xf32>) {
  %o:2 = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%a: f32, %b: f32):
      %one = arith.constant 1.0 : f32
      %sum_ab = arith.addf %a, %b : f32
      "attn.yield"(%sum_ab, %one, %one) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      %y = arith.divf %x, %l : f32
      "attn.yield"(%y, %l) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> (tensor<?x?x?x8xbf16>, tensor<?x?x?xf32>)
  return %o#0, %o#1 : tensor<?x?x?x8xbf16>, tensor<?x?x?xf32>
}
