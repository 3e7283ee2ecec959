// Both stages parse, print, and parse again to the same text.
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir | attn-opt | FileCheck %s --check-prefix=TRACED
// RUN: attn-opt %inputs/online-causal-softmax.mlir | attn-opt | FileCheck %s --check-prefix=ONLINE
// RUN: attn-opt %s --mlir-print-op-generic | attn-opt | FileCheck %s

// TRACED:       "attn.attention"(%[[Q:.*]], %[[K:.*]], %[[V:.*]]) ({
// TRACED:         "attn.score"() ({
// TRACED-NEXT:    ^bb0(%[[S:[^:]*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// TRACED:         "attn.mask"() ({
// TRACED:         "attn.row"() ({
// TRACED-NEXT:    ^bb0(%[[ROW:[^:]*]]: f32,
// TRACED-NEXT:      %[[MAX:.*]] = "attn.reduce"(%[[ROW]]) {kind = "max"} : (f32) -> f32
// TRACED:           "attn.yield"(%{{.*}}, %{{.*}}) : (f32, f32) -> ()
// TRACED:       {outputs = ["lse"]}

// ONLINE:       "attn.online"
// ONLINE:         "attn.bounds"
// ONLINE:         "attn.init"
// ONLINE:         "attn.step"
// ONLINE:         "attn.merge"
// ONLINE:         "attn.finalize"
// ONLINE:       {accumulators = 1 : i64, outputs = ["lse"], rows_nonempty = true}

// CHECK-LABEL: func.func @every_piece(
!t = tensor<?x?x?x64xf16>
func.func @every_piece(%q: !t, %ids: tensor<?x?xi32>) -> !t {
  // CHECK:      "attn.attention"
  %o = "attn.attention"(%q, %q, %q) ({
    // CHECK:      "attn.query"
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    // CHECK:      "attn.key"
    "attn.key"() ({
    ^bb0(%x: f32, %b: index, %h: index, %j: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    // CHECK:      "attn.value"
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %j: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    // CHECK:      "attn.block_mask"
    "attn.block_mask"() ({
    ^bb0(%b: index, %h: index, %i0: index, %i1: index, %j0: index, %j1: index):
      // CHECK: %[[RANGE:.*]]:2 = "attn.range"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) : (tensor<?x?xi32>, index, index, index, index) -> (index, index)
      %c1 = arith.constant 1 : index
      %b1 = arith.addi %b, %c1 : index
      %min, %max = "attn.range"(%ids, %b, %j0, %b1, %j1) : (tensor<?x?xi32>, index, index, index, index) -> (index, index)
      // CHECK: arith.cmpi slt, %[[RANGE]]#0, %[[RANGE]]#1 : index
      %any = arith.cmpi slt, %min, %max : index
      "attn.yield"(%any, %any) : (i1, i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      // CHECK: "attn.detach"(%{{.*}}) : (f32) -> f32
      %p = "attn.detach"(%s) : (f32) -> f32
      // CHECK: "attn.slope"(%{{.*}}, %{{.*}}) : (f32, f32) -> f32
      %zero = "attn.slope"(%s, %p) : (f32, f32) -> f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// CHECK-LABEL: func.func @dropout(
func.func @dropout(%n: index) -> i1 {
  // CHECK: %[[KEPT:.*]] = "attn.kept"(%[[N:.*]], %[[N]], %[[N]], %[[N]], %[[N]], %[[N]], %[[N]], %[[N]]) : (index, index, index, index, index, index, index, index) -> i1
  %kept = "attn.kept"(%n, %n, %n, %n, %n, %n, %n, %n) : (index, index, index, index, index, index, index, index) -> i1
  return %kept : i1
}
