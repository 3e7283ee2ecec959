// Warps vote before a tile is multiplied by values of its rows: where all of them are 1, nothing is multiplied.
// RUN: attn-opt %s --split-input-file -p 'warp-conditional-rescale' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-conditional-rescale,warp-conditional-rescale' | FileCheck %s --check-prefix=AGAIN

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// CHECK: %[[SUMS:.*]] = ub.poison : tensor<64x64xf32
// CHECK: %[[FACTORS:.*]] = ub.poison : tensor<64xf32
// CHECK: %[[RESCALED:.*]] = "warp.each_warp"() ({
// CHECK: %[[FLAGS:.*]] = "warp.map"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK-NEXT: %[[FACTOR:.*]] = tensor.extract %[[FACTORS]][%[[I]]]
// CHECK-NEXT: %[[CHANGES:.*]] = arith.cmpf une, %[[FACTOR]], %{{.*}} : f32
// CHECK: -> tensor<64xi1, #warp.layout<"wgmma", "rows">>
// CHECK-NEXT: %[[SOME:.*]] = "warp.vote"(%[[FLAGS]])
// CHECK-NEXT: %[[TILE:.*]] = scf.if %[[SOME]]
// CHECK-NEXT: %[[PRODUCT:.*]] = "warp.map"
// CHECK: scf.yield %[[PRODUCT]]
// CHECK-NEXT: } else {
// CHECK-NEXT: scf.yield %[[SUMS]]
// CHECK: "warp.yield"(%[[TILE]])
// A map that does more is as it was.
// CHECK: "warp.map"
// CHECK: %[[X:.*]] = tensor.extract %[[RESCALED]]
// CHECK: arith.addf
// CHECK-NOT: warp.vote
// AGAIN: warp.refused = {"warp-conditional-rescale" = "no map multiplies a tile by values of its rows"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    %sums = ub.poison : !acc
    %factors = ub.poison : !rows
    %o = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %sums[%i, %j] : !acc
      %f = tensor.extract %factors[%i] : !rows
      %y = arith.mulf %x, %f : f32
      "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
    %p = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %o[%i, %j] : !acc
      %f = tensor.extract %factors[%i] : !rows
      %y = arith.addf %x, %f : f32
      "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
