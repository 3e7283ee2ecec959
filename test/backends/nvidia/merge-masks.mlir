// A mask and the end of a block become one: past the end a tile of scores is -inf, and its exponentials are 0 by themselves.
// RUN: attn-opt %s --split-input-file -p 'warp-merge-masks,canonicalize,cse' | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// CHECK: ^bb0(%[[N:.*]]: index, %
// CHECK: %[[MASKED:.*]]:2 = "warp.map"() ({
// CHECK: %[[SEEN:.*]] = arith.cmpi sge
// CHECK: %[[WITHIN:.*]] = arith.cmpi slt, %{{.*}}, %[[N]]
// CHECK: %[[BOTH:.*]] = arith.andi %[[SEEN]], %[[WITHIN]]
// CHECK: %[[S:.*]] = arith.select %[[BOTH]], %{{.*}}, %[[INFINITE:.*]] : f32
// CHECK-NEXT: "warp.yield"(%[[S]], %[[S]])
// CHECK: "warp.map"
// CHECK: %[[E:.*]] = math.exp2
// CHECK-NEXT: "warp.yield"(%[[E]])
// CHECK: sym_name = "f"} :
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  %least = arith.constant -3.40282347E+38 : f32
  %most = arith.constant 3.40282347E+38 : f32
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant 0.125 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %m = ub.poison : !rows
    %masked:2 = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %seen = arith.cmpi sge, %i, %j : index
      %a = arith.select %seen, %s, %infinite : f32
      %within = arith.cmpi slt, %j, %n : index
      %b = arith.select %within, %a, %least : f32
      "warp.yield"(%a, %b) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
    }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!tile, !parts)
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %masked#0[%i, %j] : !tile
      %x = tensor.extract %m[%i] : !rows
      %y = arith.minimumf %x, %most : f32
      %d = math.fma %s, %scale, %y : f32
      %e = math.exp2 %d : f32
      %within = arith.cmpi slt, %j, %n : index
      %p = arith.select %within, %e, %zero : f32
      "warp.yield"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%weights, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// What asks nothing needs the scores past the end.
// CHECK: warp.refused = {"warp-merge-masks" = "something reads the tile without asking where the block ends"}
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  %infinite = arith.constant 0xFF800000 : f32
  %least = arith.constant -3.40282347E+38 : f32
  %most = arith.constant 3.40282347E+38 : f32
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant 0.125 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !tile
    %m = ub.poison : !rows
    %masked:2 = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %seen = arith.cmpi sge, %i, %j : index
      %a = arith.select %seen, %s, %infinite : f32
      %within = arith.cmpi slt, %j, %n : index
      %b = arith.select %within, %a, %least : f32
      "warp.yield"(%a, %b) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
    }) {reductions = ["", "max"], resultSegmentSizes = array<i32: 1, 1, 0>, shape = array<i64: 64, 64>} : () -> (!tile, !parts)
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %masked#0[%i, %j] : !tile
      %x = tensor.extract %m[%i] : !rows
      %y = arith.minimumf %x, %most : f32
      %d = math.fma %s, %scale, %y : f32
      %e = math.exp2 %d : f32
      %within = arith.cmpi slt, %j, %n : index
      "warp.yield"(%e) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%weights, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
