// What one warpgroup alone did, copies, becomes a role of one warp; the others keep the rest, and neither what only the other one needs.
// RUN: attn-opt %s --split-input-file -p 'warp-specialize' | FileCheck %s

!heads = memref<?x?x?x64xf16>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 4 : i64>
!half = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>

// CHECK: "warp.kernel"() ({
// CHECK: "warp.role"() ({
// The producer's loop carries the count alone.
// CHECK: scf.for %[[N:.*]] = %c0 to %{{.*}} step %c64 iter_args(%[[COUNT:.*]] = %c0) -> (index) {
// CHECK-NEXT: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]])
// CHECK-NEXT: %[[TILE:.*]] = "warp.view"
// CHECK-NEXT: %[[PHASE:.*]] = arith.xori %[[STAGE]]#1, %c1
// CHECK-NEXT: "warp.wait"(%{{.*}}, %[[STAGE]]#0, %[[PHASE]])
// CHECK-NEXT: "warp.elect"() ({
// CHECK-NEXT: "warp.arrive_expect"
// CHECK-NEXT: "warp.copy_async"
// CHECK-NEXT: }) : () -> ()
// CHECK-NEXT: %[[NEXT:.*]] = arith.addi %[[COUNT]], %c1
// CHECK-NEXT: scf.yield %[[NEXT]] : index
// CHECK-NOT: warp.read
// CHECK: }) {registers = 40 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64}
// CHECK-NEXT: "warp.role"() ({
// CHECK-NOT: warp.copy_async
// CHECK: scf.for {{.*}} iter_args(%{{.*}} = %c0, %[[ROW:.*]] = %c0) -> (index, index) {
// CHECK: "warp.wait"
// CHECK: "warp.read"
// CHECK-NEXT: "warp.arrive"
// CHECK-NEXT: "warp.store"({{.*}}, %[[ROW]])
// CHECK: }) {registers = 240 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64}
// CHECK: registers = 248
"warp.kernel"() ({
^bb0(%x: !heads, %y: !heads):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %rows = memref.dim %x, %c2 : !heads
  %ring = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %first = arith.cmpi eq, %w, %c0 : index
    %0:2 = scf.for %n = %c0 to %rows step %c64 iter_args(%count = %c0, %row = %c0) -> (index, index) {
      %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
      %tile = "warp.view"(%ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
      scf.if %first {
        %other = arith.xori %phase, %c1 : index
        "warp.wait"(%free, %stage, %other) : (!free, index, index) -> ()
        "warp.elect"() ({
          "warp.arrive_expect"(%full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
          "warp.copy_async"(%x, %c0, %c0, %n, %c0, %tile, %full, %stage) : (!heads, index, index, index, index, !tile, !full, index) -> ()
        }) : () -> ()
      }
      "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
      %t = "warp.read"(%tile) : (!tile) -> !half
      "warp.arrive"(%free, %stage) : (!free, index) -> ()
      "warp.store"(%t, %y, %c0, %c0, %row) : (!half, !heads, index, index, index) -> ()
      %next = arith.addi %count, %c1 : index
      %next_row = arith.addi %row, %c64 : index
      scf.yield %next, %next_row : index, index
    }
  }) {registers = 248 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "copy", warp.schedule = {producer_registers = 40 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize" = "nothing is copied by one warpgroup alone"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-specialize" = "splits the only role of a kernel, there are 2"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 168 : i64, sym_name = "a", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 168 : i64, sym_name = "b", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
