// Captured tensors: one scatter for each read, added up; what is formed for each row is not formed for each pair, and not for fully masked rows.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK:         %[[PAIRS:[0-9]+]] = "attn.pairs"() ({
// CHECK:           "attn.mask"() ({
// CHECK:           "attn.pair"() ({
// CHECK:             "attn.yield"(%{{[a-z0-9_]+}}, %[[DX:[a-z0-9_]+]], %[[FIRST:[a-z0-9_]+]], %[[SECOND:[a-z0-9_]+]])
// CHECK:         %[[ROWS:[0-9]+]] = "attn.elements"
// CHECK:             %[[COUNT:[a-z0-9_]+]] = tensor.extract %saved_count
// CHECK-NEXT:        %[[SOME:[a-z0-9_]+]] = arith.cmpf ogt, %[[COUNT]],
// CHECK:             arith.select %[[SOME]],
// CHECK:         %[[SINK:[a-z0-9_]+]] = "attn.scatter"(%[[ROWS]], %arg4) ({
// CHECK-NEXT:    ^bb0(%{{[a-z0-9_]+}}: index, %[[H:[a-z0-9_]+]]: index,
// CHECK-NEXT:      "attn.yield"(%[[H]])
// CHECK:         %[[A:[a-z0-9_]+]] = "attn.scatter"(%[[PAIRS]], %arg3) ({
// CHECK:             %[[I:[a-z0-9_]+]] = arith.subi
// CHECK-NEXT:        "attn.yield"(%[[I]])
// CHECK:         }) {weight = 2 : i64}
// CHECK:         %[[B:[a-z0-9_]+]] = "attn.scatter"(%[[PAIRS]], %arg3) ({
// CHECK:         }) {weight = 3 : i64}
// CHECK:         %[[TABLE:[a-z0-9_]+]] = arith.addf %[[A]], %[[B]] : tensor<?xf32>
// CHECK:         return %{{.*}}, %{{.*}}, %{{.*}}, %[[TABLE]], %[[SINK]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>, %sink: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %i = arith.subi %q_idx, %kv_idx : index
      %a = tensor.extract %table[%i] : tensor<?xf32>
      %b0 = tensor.extract %table[%h] : tensor<?xf32>
      %ab = arith.mulf %a, %b0 : f32
      %s = arith.addf %x, %ab : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %t = tensor.extract %sink[%h] : tensor<?xf32>
      %td = arith.subf %t, %m : f32
      %te = math.exp %td : f32
      %z = arith.addf %l, %te : f32
      %p = arith.divf %e, %z : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
