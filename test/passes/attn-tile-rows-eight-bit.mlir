// Loads widen 8-bit elements to what products take: f32, or as the target says bf16, or the queries' type.
// RUN: attn-opt %s --split-input-file -p 'attn-tile-rows{block-q=32 block-kv=16},canonicalize,cse' | FileCheck %s

// Weights have the digits of v on every target.
// CHECK-LABEL: func.func @attention(
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xf8E4M3FN, {{.*}} -> tensor<32x64xf32>
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xf8E4M3FN, {{.*}} -> tensor<?x64xf32>
// CHECK:         arith.truncf %{{.*}} : f32 to f8E4M3FN
// CHECK-NEXT:    arith.extf %{{.*}} : f8E4M3FN to f32
// CHECK:         "tile.dot_add"(%{{.*}}) {{.*}} : (tensor<32x64xf32>, tensor<32x?xf32>, tensor<?x64xf32>)
// CHECK:         arith.truncf %{{.*}} : f32 to bf16
func.func @attention(%q: tensor<?x?x?x64xf8E4M3FN>, %k: tensor<?x?x?x64xf8E4M3FN>, %v: tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16> {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %t = math.tanh %s : f32
      "attn.yield"(%t, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}

// -----

// CHECK-LABEL: func.func @attention(
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xbf16, {{.*}} -> tensor<32x64xbf16>
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xf8E5M2, {{.*}} -> tensor<?x64xbf16>
// CHECK-NOT:     f8E5M2 to
// CHECK:         arith.truncf %{{.*}} : f32 to bf16
// CHECK:         "tile.dot_add"(%{{.*}}) {{.*}} : (tensor<32x64xf32>, tensor<32x?xbf16>, tensor<?x64xbf16>)
func.func @attention(%q: tensor<?x?x?x64xbf16>, %k: tensor<?x?x?x64xf8E5M2>, %v: tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xbf16> attributes {tile.numerics = {narrow = "bf16"}} {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%s, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x64xbf16>, tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}

// -----

// 8-bit matrix instructions take the numbers as they are, and weights rounded to them.
// CHECK-LABEL: func.func @attention(
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xf8E4M3FN, {{.*}} -> tensor<32x64xf8E4M3FN>
// CHECK:         arith.truncf %{{.*}} : f32 to f8E4M3FN
// CHECK-NOT:     arith.extf %{{.*}} : f8E4M3FN to f32
// CHECK:         "tile.dot_add"(%{{.*}}) {{.*}} : (tensor<32x64xf32>, tensor<32x?xf8E4M3FN>, tensor<?x64xf8E4M3FN>)
func.func @attention(%q: tensor<?x?x?x64xf8E4M3FN>, %k: tensor<?x?x?x64xf8E4M3FN>, %v: tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16> attributes {tile.numerics = {narrow = "nuz"}} {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %t = math.tanh %s : f32
      "attn.yield"(%t, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>, tensor<?x?x?x64xf8E4M3FN>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}

// -----

// Those of "nuz" types have no infinities, which e5m2 has.
// CHECK-LABEL: func.func @attention(
// CHECK:         "tile.load"(%{{.*}}) : (memref<?x?x?x64xf8E5M2, {{.*}} -> tensor<32x64xbf16>
// CHECK:         arith.truncf %{{.*}} : f32 to f8E5M2
func.func @attention(%q: tensor<?x?x?x64xf8E5M2>, %k: tensor<?x?x?x64xf8E5M2>, %v: tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xbf16> attributes {tile.numerics = {narrow = "nuz"}} {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %t = math.tanh %s : f32
      "attn.yield"(%t, %one) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xf8E5M2>, tensor<?x?x?x64xf8E5M2>) -> tensor<?x?x?x64xbf16>
  return %o : tensor<?x?x?x64xbf16>
}
