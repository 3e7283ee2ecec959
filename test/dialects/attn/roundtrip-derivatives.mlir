// Ops of derivatives parse, print, and parse again to the same text.
// RUN: attn-opt %inputs/derivatives/alibi-causal-softmax-backward.mlir | attn-opt | FileCheck %s --check-prefix=BACKWARD
// RUN: attn-opt %inputs/derivatives/softmax-tangent.mlir | attn-opt | FileCheck %s --check-prefix=TANGENT
// RUN: attn-opt %s --mlir-print-op-generic | attn-opt | FileCheck %s

// BACKWARD:       %[[DELTA:.*]] = "attn.row_dot"(%[[DO:.*]], %{{.*}}) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32>
// BACKWARD:       %[[W:.*]] = "attn.pairs"() ({
// BACKWARD-NEXT:    "attn.product"(%[[Q:.*]], %[[K:.*]]) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
// BACKWARD-NEXT:    "attn.product"(%[[DO]], %{{.*}}) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> ()
// BACKWARD:         "attn.pair"() ({
// BACKWARD-NEXT:    ^bb0(%[[X:[^:]*]]: f32, %[[DP:[^:]*]]: f32, %[[B:[^:]*]]: index, %[[H:[^:]*]]: index, %[[I:[^:]*]]: index,
// BACKWARD:           tensor.extract %[[DELTA]][%[[B]], %[[H]], %[[I]]]
// BACKWARD:       }) : () -> none
// BACKWARD-NEXT:  "attn.query_sum"(%[[W]], %[[K]]) {weights = array<i64: 0>} : (none, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
// BACKWARD-NEXT:  "attn.key_sum"(%[[W]], %[[Q]]) {weights = array<i64: 0>}
// BACKWARD-NEXT:  "attn.key_sum"(%[[W]], %[[DO]]) {weights = array<i64: 1>}
// BACKWARD-NEXT:  "attn.scatter"(%[[W]], %{{.*}}) ({

// TANGENT:        %[[O:.*]] = "attn.attention"
// TANGENT-COUNT-2:  "attn.product"
// TANGENT-COUNT-2:  "attn.term"(%{{.*}}) {output = 1 : i64} : (tensor<?x?x?x32xf32>) -> ()
// TANGENT:        "attn.output"(%[[O]]) {index = 1 : i64}

// CHECK-LABEL: func.func @every_piece(
!t = tensor<?x?x?x64xf32>
func.func @every_piece(%q: !t, %slopes: tensor<?xf32>) -> (!t, tensor<?xf32>) {
  // CHECK: %[[PAIRS:.*]] = "attn.pairs"
  %pairs = "attn.pairs"() ({
    "attn.product"(%q, %q) : (!t, !t) -> ()
    // CHECK: "attn.query_bounds"
    "attn.query_bounds"() ({
    ^bb0(%b: index, %h: index, %j0: index, %j1: index):
      "attn.yield"(%j0, %j0, %j1, %j1) : (index, index, index, index) -> ()
    }) : () -> ()
    // CHECK: "attn.block_mask"
    "attn.block_mask"() ({
    ^bb0(%b: index, %h: index, %i0: index, %i1: index, %j0: index, %j1: index):
      %any = arith.cmpi slt, %j0, %i1 : index
      "attn.yield"(%any, %any) : (i1, i1) -> ()
    }) : () -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  // CHECK: "attn.query_sum"(%[[PAIRS]], %{{.*}}, %{{.*}}) {weights = array<i64: 0, 0>}
  %sum = "attn.query_sum"(%pairs, %q, %q) {weights = array<i64: 0, 0>} : (none, !t, !t) -> !t
  // CHECK: %[[ELEMENTS:.*]] = "attn.elements"(%{{.*}}) ({
  %elements = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = tensor.extract %q[%b, %h, %i, %d] : !t
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  // CHECK: "attn.collect"(%[[ELEMENTS]]) {weight = 0 : i64} : (none) -> tensor<?x?x?x64xf16>
  %half = "attn.collect"(%elements) {weight = 0} : (none) -> tensor<?x?x?x64xf16>
  // CHECK: "attn.scatter"(%[[ELEMENTS]], %{{.*}}) ({
  %heads = "attn.scatter"(%elements, %slopes) ({
  ^bb0(%b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %sum, %heads : !t, tensor<?xf32>
}

// CHECK-LABEL: func.func @residual(
// CHECK:         %[[O:.*]] = "attn.attention"
// CHECK:         %[[R:.*]] = "attn.residual"(%[[O]]) : (tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16>
// CHECK-NEXT:    "attn.residual"(%[[O]]) {index = 1 : i64} : (tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16>
// CHECK-NEXT:    "attn.row_dot"(%{{.*}}, %[[O]], %[[R]])
!h = tensor<?x?x?x64xf16>
func.func @residual(%q: !h) -> tensor<?x?x?xf32> {
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.term"(%q) {output = 1} : (!h) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!h, !h, !h) -> !h
  %r = "attn.residual"(%o) : (!h) -> !h
  "attn.residual"(%o) {index = 1} : (!h) -> !h
  %d = "attn.row_dot"(%q, %o, %r) : (!h, !h, !h) -> tensor<?x?x?xf32>
  return %d : tensor<?x?x?xf32>
}
