// Operands, other pieces and attributes stay; a row in f64 gets the limits of f64.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[Q:[a-z0-9]*]]: tensor<?x?x?x64xf32>, %[[K:[a-z0-9]*]]: tensor<?x?x?x64xf32>, %[[V:[a-z0-9]*]]: tensor<?x?x?x64xf32>, %[[SCALE:[a-z0-9]*]]: f32)
// CHECK:       %[[R:.*]]:2 = "attn.online"(%[[Q]], %[[K]], %[[V]])
// CHECK:       "attn.score"()
// CHECK:         arith.mulf %{{.*}}, %[[SCALE]]
// CHECK:       "attn.mask"()
// CHECK:         arith.cmpi sge
// CHECK:       "attn.bounds"()
// CHECK:         tensor.dim %[[K]]
// CHECK-NOT:   "attn.row"
// CHECK:       "attn.init"()
// CHECK:       outputs = ["lse"], rows_nonempty = true
// CHECK:       return %[[R]]#0, %[[R]]#1
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %scale: f32) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.mulf %score, %scale : f32
      "attn.yield"(%0) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%0) : (i1) -> ()
    }) : () -> ()
    "attn.bounds"() ({
    ^bb0(%b: index, %h: index, %q_begin: index, %q_end: index):
      %skv = tensor.dim %k, %c2 : tensor<?x?x?x64xf32>
      "attn.yield"(%c0, %c0, %c0, %skv) : (index, index, index, index) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"], rows_nonempty = true} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}

// -----

// CHECK-LABEL: @attention
// CHECK:       "attn.init"()
// CHECK:         arith.constant -1.7976931348623157E+308 : f64
// CHECK:       "attn.step"()
// CHECK-NOT:     f32
// CHECK:       "attn.merge"()
func.func @attention(%q: tensor<?x?x?x64xf64>, %k: tensor<?x?x?x64xf64>, %v: tensor<?x?x?x64xf64>) -> tensor<?x?x?x64xf64> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f64, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f64) -> f64 loc("m")
      %d = arith.subf %s, %m : f64
      %e = math.exp %d : f64
      %l = "attn.reduce"(%e) {kind = "sum"} : (f64) -> f64 loc("l")
      %p = arith.divf %e, %l : f64
      "attn.yield"(%p) : (f64) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf64>, tensor<?x?x?x64xf64>, tensor<?x?x?x64xf64>) -> tensor<?x?x?x64xf64>
  return %o : tensor<?x?x?x64xf64>
}
