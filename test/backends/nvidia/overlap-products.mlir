// The product that adds to what a loop carries runs one iteration later, in flight with the first product of the next iteration.
// RUN: attn-opt %s --split-input-file -p 'warp-overlap-products' | FileCheck %s

#smem = #warp.shared<128 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!ring = memref<2x64x64xf16, #smem>
!tile = memref<64x64xf16, #smem>
!full = !warp.barrier<2 : i64, 1 : i64>
!free = !warp.barrier<2 : i64, 4 : i64>

// CHECK: %[[SUMS:.*]] = ub.poison
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %c0, %[[N:.*]] : index
// CHECK-NEXT: %[[ALL:.*]]:2 = scf.if %[[SOME]] -> (tensor<{{.*}}>, index) {
// The first weights.
// CHECK: "warp.mma_wait"({{.*}}) {pending = 0 : i64}
// CHECK-NEXT: %[[WEIGHTS:.*]] = "warp.map"
// CHECK: %[[SECOND:.*]] = arith.addi %c0, %c64
// CHECK-NEXT: %[[LOOP:.*]]:3 = scf.for %[[M:.*]] = %[[SECOND]] to %[[N]] step %c64 iter_args(%[[O:.*]] = %[[SUMS]], %[[COUNT:.*]] = %c0, %[[OLD:.*]] = %[[WEIGHTS]])
// CHECK: %[[S:.*]] = "warp.mma_async"(%{{.*}}, %{{.*}}, %{{.*}}, %false)
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]])
// CHECK: "warp.wait"(%{{.*}}, %[[STAGE]]#0, %[[STAGE]]#1)
// CHECK: %[[P:.*]] = "warp.mma_async"(%[[O]], %[[OLD]], %{{.*}}, %true)
// CHECK-NEXT: "warp.mma_commit"
// CHECK-NEXT: "warp.mma_wait"(%[[S]]) {pending = 1 : i64}
// Registers that the second product reads are not written before it is done.
// CHECK-NEXT: %[[DONE:.*]] = "warp.mma_wait"(%[[P]]) {pending = 0 : i64}
// CHECK-NEXT: "warp.arrive"(%{{.*}}, %[[STAGE]]#0)
// CHECK: %[[NEW:.*]] = "warp.map"
// CHECK: scf.yield %[[DONE]], %{{.*}}, %[[NEW]]
// CHECK: "warp.stage"(%[[LOOP]]#1)
// CHECK: "warp.mma_async"(%[[LOOP]]#0, %[[LOOP]]#2, %{{.*}}, %true)
// CHECK: } else {
// CHECK-NEXT: scf.yield %[[SUMS]], %c0
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %true = arith.constant true
  %keys = "warp.alloc"() : () -> !ring
  %ring = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %sums = ub.poison : !acc
    %k = "warp.view"(%keys, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %0:2 = scf.for %m = %c0 to %n step %c64 iter_args(%o = %sums, %count = %c0) -> (!acc, index) {
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %1 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%1) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      %p = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = tensor.extract %s[%i, %j] : !acc
        %y = arith.truncf %x : f32 to f16
        "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !half
      %stage, %phase = "warp.stage"(%count) {stages = 2 : i64} : (index) -> (index, index)
      %v = "warp.view"(%ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
      "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
      "warp.mma_begin"() : () -> ()
      %2 = "warp.mma_async"(%o, %p, %v, %true) {transpose_a = false, transpose_b = false} : (!acc, !half, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %3 = "warp.mma_wait"(%2) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      "warp.arrive"(%free, %stage) : (!free, index) -> ()
      %next = arith.addi %count, %c1 : index
      scf.yield %3, %next : !acc, index
    }
  }) {registers = 240 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-overlap-products" = "no loop multiplies"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-overlap-products" = "a loop of one product that feeds another is rotated, not one of 1"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %keys = "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
  "warp.role"() ({
  ^bb0(%w: index):
    %k = "warp.view"(%keys, %c0, %c0, %c0) : (memref<1x64x64xf16, #warp.shared<128 : i64>>, index, index, index) -> memref<64x64xf16, #warp.shared<128 : i64>>
    scf.for %m = %c0 to %n step %c64 {
      %r = "warp.registers"() : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
      "warp.mma_begin"() : () -> ()
      %1 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (tensor<64x64xf32, #warp.layout<"wgmma", "tile">>, memref<64x64xf16, #warp.shared<128 : i64>>, memref<64x64xf16, #warp.shared<128 : i64>>, i1) -> !warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%1) {pending = 0 : i64} : (!warp.pending<tensor<64x64xf32, #warp.layout<"wgmma", "tile">>>) -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
    }
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
