// Both sides of a window of queries, clamped to the last one, are bounds of a row; two selects share the condition.
// RUN: attn-opt %s -p 'warp-bound-columns,canonicalize,cse' | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%[[QUERY:.*]]: index, %[[KEY:.*]]: index, %[[MOST:.*]]: index, %[[LEFT:.*]]: index, %[[RIGHT:.*]]: index, %[[ANY:.*]]: i1,
// CHECK: %[[BOUNDS:.*]]:2 = "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// All columns are taken where the last one that exists is.
// CHECK: %[[ALWAYS:.*]] = arith.cmpi slt, %[[MOST]], %[[END:.*]] :
// CHECK: arith.select %[[ALWAYS]], %c64{{.*}}, %[[END]]
// CHECK: arith.select %[[ANY]], %c64
// CHECK: -> (tensor<64xi32, #warp.layout<"wgmma", "rows">>, tensor<64xi32, #warp.layout<"wgmma", "rows">>)
// CHECK: "warp.map"() ({
// CHECK-DAG: %[[BELOW:.*]] = arith.cmpi slt, %{{.*}}, %{{.*}} : i32
// CHECK-DAG: %[[ABOVE:.*]] = arith.cmpi sge, %{{.*}}, %{{.*}} : i32
// CHECK: %[[SEEN:.*]] = arith.andi
// CHECK-NOT: arith.cmpi
// CHECK: arith.select %[[SEEN]]
// CHECK: arith.select %[[SEEN]]
"warp.kernel"() ({
^bb0(%query: index, %key: index, %most: index, %left: index, %right: index, %any: i1, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked, %other = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %last = arith.minsi %j, %most : index
      %q_idx = arith.addi %query, %last : index
      %kv_idx = arith.addi %key, %i : index
      %after = arith.subi %q_idx, %kv_idx : index
      %a0 = arith.cmpi sle, %after, %left : index
      %a = arith.ori %any, %a0 : i1
      %before = arith.subi %kv_idx, %q_idx : index
      %b = arith.cmpi sle, %before, %right : index
      %seen = arith.andi %a, %b : i1
      %x = arith.select %seen, %s, %zero : f32
      %t = arith.mulf %s, %s : f32
      %y = arith.select %seen, %t, %zero : f32
      "warp.yield"(%x, %y) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
    }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64, 64>} : () -> (!tile, !tile)
    "warp.atomic_add"(%masked, %o, %c0, %c0, %c0, %c0) {ordered = false} : (!tile, memref<?x?x?x64xf32>, index, index, index, index) -> ()
    "warp.atomic_add"(%other, %o, %c0, %c0, %c0, %c0) {ordered = false} : (!tile, memref<?x?x?x64xf32>, index, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
