// The first factor of a loop's product is read into registers before the loop, and its stage given back there.
// RUN: attn-opt %s --split-input-file -p 'warp-hold-factors,canonicalize,cse' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!free = !warp.barrier<1 : i64, 4 : i64>

// CHECK: %[[BUFFER:.*]] = "warp.alloc"
// CHECK: %[[PLACE:.*]] = "warp.view"(%[[BUFFER]]
// CHECK-NEXT: %[[Q:.*]] = "warp.read"(%[[PLACE]]) : (memref<{{.*}}>) -> tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
// CHECK-NEXT: "warp.arrive"
// CHECK-NEXT: scf.for
// CHECK: "warp.mma_async"(%{{.*}}, %[[Q]], %{{.*}}, %false)
// CHECK-NOT: warp.arrive
// CHECK: sym_name = "f"} :
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %q_buffer = "warp.alloc"() : () -> !ring
  %k_buffer = "warp.alloc"() : () -> !ring
  %q_free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %stage:2 = "warp.stage"(%c0) {stages = 1 : i64} : (index) -> (index, index)
    scf.for %m = %c0 to %n step %c1 {
      %q = "warp.view"(%q_buffer, %stage#0, %c0, %c0) : (!ring, index, index, index) -> !tile
      %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      %s = "warp.mma_async"(%r, %q, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %done = "warp.mma_wait"(%s) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
    }
    "warp.arrive"(%q_free, %stage#0) : (!free, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// CHECK: "warp.mma_async"(%{{.*}}, %{{.*}}, %{{.*}}, %false)
// CHECK: warp.refused = {"warp-hold-factors" = "a factor in registers would make 86 of a thread, which has 80"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %q_buffer = "warp.alloc"() : () -> !ring
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %q = "warp.view"(%q_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 {
      %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      %s = "warp.mma_async"(%r, %q, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %done = "warp.mma_wait"(%s) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
    }
  }) {registers = 80 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 80 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// There is no room for the whole factor: its first columns are read once, and a product takes them from registers.
// CHECK: %[[PLACE:.*]] = "warp.view"(%{{.*}}) : {{.*}} -> memref<64x16xf16,
// CHECK-NEXT: %[[COLUMNS:.*]] = "warp.read"(%[[PLACE]])
// CHECK-NEXT: scf.for
// CHECK: %[[HELD:.*]] = "warp.hold"(%{{.*}}, %[[COLUMNS]])
// CHECK-NEXT: "warp.mma_async"(%{{.*}}, %[[HELD]], %{{.*}}, %false)
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %q_buffer = "warp.alloc"() : () -> !ring
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %q = "warp.view"(%q_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 {
      %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      %s = "warp.mma_async"(%r, %q, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %done = "warp.mma_wait"(%s) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
    }
  }) {registers = 80 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 80 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {held = 1 : i64}} : () -> ()

// -----

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>

// All columns are no part of a factor: there is no room for them.
// CHECK-NOT: warp.hold
// CHECK: warp.refused = {"warp-hold-factors" = "`held` is 1 to 3 of a factor of 64 columns, not 4"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %false = arith.constant false
  %q_buffer = "warp.alloc"() : () -> !ring
  %k_buffer = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %q = "warp.view"(%q_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 {
      %k = "warp.view"(%k_buffer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
      %r = "warp.registers"() : () -> !acc
      %s = "warp.mma_async"(%r, %q, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %done = "warp.mma_wait"(%s) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
    }
  }) {registers = 80 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 80 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {held = 4 : i64}} : () -> ()
