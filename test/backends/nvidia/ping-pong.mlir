// Ping-pong of warpgroups: each waits before the products of an iteration, and lets the next one pass behind their commit.
// RUN: attn-opt %s --split-input-file -p 'warp-ping-pong' | FileCheck %s

#smem = #warp.shared<128 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #smem>
!ring = memref<1x64x64xf16, #smem>

// CHECK: "warp.role"
// CHECK-NEXT: ^bb0(%[[WARPGROUP:.*]]: index):
// The last one lets the first one pass.
// CHECK: %[[LAST:.*]] = arith.cmpi eq, %[[WARPGROUP]], %c2{{.*}} : index
// CHECK-NEXT: scf.if %[[LAST]] {
// CHECK: "warp.named_arrive"(%c1{{.*}}) {threads = 256 : i64}
// CHECK: scf.for
// CHECK: %[[OWN:.*]] = arith.addi %[[WARPGROUP]], %c1{{.*}} : index
// CHECK-NEXT: "warp.named_sync"(%[[OWN]]) {threads = 256 : i64}
// CHECK-NEXT: "warp.mma_begin"
// CHECK: "warp.mma_commit"
// CHECK: "warp.mma_commit"
// CHECK: %[[FOLLOWING:.*]] = arith.remui %{{.*}}, %c3{{.*}} : index
// CHECK: %[[NEXT:.*]] = arith.addi %[[FOLLOWING]], %c1{{.*}} : index
// CHECK-NEXT: "warp.named_arrive"(%[[NEXT]]) {threads = 256 : i64}
// CHECK-NEXT: "warp.mma_wait"({{.*}}) {pending = 1 : i64}
// CHECK: sym_name = "f"} : () -> ()
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %true = arith.constant true
  %keys = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %k = "warp.view"(%keys, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %sums = ub.poison : !acc
    %0 = scf.for %m = %c0 to %n step %c64 iter_args(%o = %sums) -> (!acc) {
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %1 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %2 = "warp.mma_async"(%o, %k, %k, %true) {transpose_a = false, transpose_b = false} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%1) {pending = 1 : i64} : (!warp.pending<!acc>) -> !acc
      %p = "warp.mma_wait"(%2) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
      scf.yield %p : !acc
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-ping-pong" = "the schedule has no ping-pong"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {ping_pong = 0 : i64}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-ping-pong" = "no role of several warpgroups has a loop with products in flight together"}
"warp.kernel"() ({
^bb0(%n: index):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 3 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

#smem = #warp.shared<128 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf16, #smem>
!ring = memref<1x64x64xf16, #smem>

// A warpgroup with fewer blocks would leave the next one waiting.
// CHECK: warp.refused = {"warp-ping-pong" = "how often a loop runs depends on the warpgroup"}
"warp.kernel"() ({
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %keys = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %k = "warp.view"(%keys, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
    %rows = arith.muli %w, %c64 : index
    %end = arith.addi %rows, %n : index
    scf.for %m = %c0 to %end step %c64 {
      %r = "warp.registers"() : () -> !acc
      "warp.mma_begin"() : () -> ()
      %1 = "warp.mma_async"(%r, %k, %k, %false) {transpose_a = false, transpose_b = true} : (!acc, !tile, !tile, i1) -> !warp.pending<!acc>
      "warp.mma_commit"() : () -> ()
      %s = "warp.mma_wait"(%1) {pending = 1 : i64} : (!warp.pending<!acc>) -> !acc
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
