// Half of what a map makes of one product is computed while the other one flies: a second look at a barrier holds it.
// RUN: attn-opt %s --split-input-file -p 'warp-pin-maps' | FileCheck %s

!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!view = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = !warp.barrier<2 : i64, 1 : i64>

// CHECK: scf.for
// CHECK: "warp.wait"(%[[FULL:.*]], %[[STAGE:[^,]*]], %[[PHASE:[^)]*]])
// CHECK: %[[TILE:.*]] = "warp.map"
// CHECK: %[[PINNED:.*]] = "warp.pin"(%[[TILE]], %[[FULL]], %[[STAGE]], %[[PHASE]]) {columns = 32 : i64}
// CHECK: "warp.mma_wait"
// CHECK: tensor.extract %[[PINNED]]
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %true = arith.constant true
  %full = "warp.mbarrier"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      %stage, %phase = "warp.stage"(%m) {stages = 2 : i64} : (index) -> (index, index)
      "warp.wait"(%full, %stage, %phase) : (!ring, index, index) -> ()
      %a = ub.poison : !view
      %r = "warp.registers"() : () -> !sums
      %s = "warp.mma_async"(%r, %a, %a, %true) {transpose_a = false, transpose_b = true} : (!sums, !view, !view, i1) -> !warp.pending<!sums>
      "warp.mma_commit"() : () -> ()
      %r2 = "warp.registers"() : () -> !sums
      %t = "warp.mma_async"(%r2, %a, %a, %true) {transpose_a = false, transpose_b = true} : (!sums, !view, !view, i1) -> !warp.pending<!sums>
      "warp.mma_commit"() : () -> ()
      %first = "warp.mma_wait"(%s) {pending = 1 : i64} : (!warp.pending<!sums>) -> !sums
      %e = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %first[%i, %j] : !sums
        %y = math.exp2 %x : f32
        "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !sums
      %second = "warp.mma_wait"(%t) {pending = 0 : i64} : (!warp.pending<!sums>) -> !sums
      %z = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %e[%i, %j] : !sums
        %y = tensor.extract %second[%i, %j] : !sums
        %p = arith.mulf %x, %y : f32
        "warp.yield"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !sums
    }
  }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 240 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {pin_maps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-pin-maps" = "no loop multiplies"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {pin_maps = 1 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-pin-maps" = "the schedule leaves it to compilers where maps are computed (pin_maps)"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 88 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
