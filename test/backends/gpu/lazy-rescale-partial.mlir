// Partial results hold the maximum and what goes with it: any number near it may be stored in its place, where the module says so.
// RUN: attn-opt %s -p 'attn-resolve-masks,attn-online-rewrite,attn-tile{block-q=128 block-kv=128 whole=true},canonicalize,cse,gpu-lazy-rescale' | FileCheck %s

// CHECK:       module attributes {attn.free_reference}
// CHECK:       %[[NEW:.*]] = arith.maximumf %[[OLD:.*]], %{{.*}} {gpu.free}
// CHECK:       %[[GROWTH:.*]] = arith.subf %[[NEW]], %[[OLD]]
// CHECK:       arith.cmpf ole, %[[GROWTH]]
module attributes {attn.free_reference} {
  func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>) {
    %0:3 = "attn.attention"(%q, %k, %v) ({
      "attn.row"() ({
      ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
        %max = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
        %1 = arith.subf %s, %max : f32
        %weight = math.exp %1 : f32
        %sum = "attn.reduce"(%weight) {kind = "sum"} : (f32) -> f32
        "attn.yield"(%weight, %max, %sum) : (f32, f32, f32) -> ()
      }) : () -> ()
    }) {outputs = ["state0_max", "state1_sum"]} : (tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
    return %0#0, %0#1, %0#2 : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>
  }
}
