// In a kernel that adds to global memory columns are queries: the first one that a key's mask lets through is computed once a row.
// RUN: attn-opt %s -p 'warp-bound-columns,canonicalize,cse' | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%[[QUERY:.*]]: index, %[[KEY:.*]]: index, %[[MOST:.*]]: index,
// CHECK: %[[FIRST:.*]] = "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK: %[[K:.*]] = arith.addi %[[KEY]], %[[I]]
// CHECK: %[[AT:.*]] = arith.subi %[[K]], %[[QUERY]]
// No column is taken where the last one that exists lies before it.
// CHECK: %[[NEVER:.*]] = arith.cmpi slt, %[[MOST]], %[[AT]]
// CHECK: arith.select %[[NEVER]], %c64{{.*}}, %[[AT]]
// CHECK: -> tensor<64xi32, #warp.layout<"wgmma", "rows">>
// CHECK: %[[B:.*]] = tensor.extract %[[FIRST]]
// CHECK: arith.cmpi sge, %{{.*}}, %[[B]] : i32
// CHECK-NOT: arith.cmpi
"warp.kernel"() ({
^bb0(%query: index, %key: index, %most: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %masked = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %last = arith.minsi %j, %most : index
      %q_idx = arith.addi %query, %last : index
      %kv_idx = arith.addi %key, %i : index
      %seen = arith.cmpi sge, %q_idx, %kv_idx : index
      %a = arith.select %seen, %s, %zero : f32
      "warp.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.atomic_add"(%masked, %o, %c0, %c0, %c0, %c0) {ordered = false} : (!tile, memref<?x?x?x64xf32>, index, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
