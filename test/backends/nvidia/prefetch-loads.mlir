// Copies of all warps are issued iterations ahead: before the loop, then in each iteration for a later one.
// RUN: attn-opt %s --split-input-file -p 'warp-prefetch-loads{stages=3},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-prefetch-loads{stages=1}' | FileCheck %s --check-prefix=ONE
// RUN: attn-opt %s --split-input-file -p 'warp-prefetch-loads{stages=40}' | FileCheck %s --check-prefix=MANY
// RUN: not attn-opt %s --split-input-file -p 'warp-prefetch-loads{stages=-1}' 2>&1 | FileCheck %s --check-prefix=LESS

// CHECK: %[[OUTER:.*]] = "warp.alloc"() : () -> memref<1x32x64xf16, #warp.shared<128 : i64>>
// CHECK: %[[RING:.*]] = "warp.alloc"() : () -> memref<3x32x64xf16, #warp.shared<128 : i64>>
// ONE: warp.refused = {"warp-prefetch-loads" = "one stage leaves nothing to copy ahead"}
// MANY: warp.refused = {"warp-prefetch-loads" = "40 stages take 167936 bytes of shared memory, there are 166912"}
// LESS: error: warp-prefetch-loads: `stages` must not be negative, got -1

!heads = memref<?x?x?x64xf16>
!ring = memref<1x32x64xf16, #warp.shared<128 : i64>>
!tile = memref<32x64xf16, #warp.shared<128 : i64>>
!half = tensor<64x64xf16, #warp.layout<"mma16", "tile">>
!acc = tensor<64x32xf32, #warp.layout<"mma16", "tile">>
!out = memref<?x?x?x32xf32>

"warp.kernel"() ({
^bb0(%q: !heads, %k: !heads, %o: !out):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  %rows = memref.dim %k, %c2 : !heads
  %outer = "warp.alloc"() : () -> !ring
  %ring = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %a = "warp.load"(%q, %c0, %c0, %c0) : (!heads, index, index, index) -> !half
    // CHECK: scf.for %{{.*}} iter_args(%[[COUNT:.*]] = %c0)
    %0:1 = scf.for %m = %c0 to %rows step %c32 iter_args(%count = %c0) -> (index) {
      // CHECK: "warp.copy_lanes_async"(%{{.*}}, %c0, %c0, %{{.*}}, %c0, %{{.*}})
      // CHECK-NEXT: "warp.copy_commit"()
      %q_tile = "warp.view"(%outer, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
      "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
      "warp.copy_lanes_async"(%q, %c0, %c0, %m, %c0, %q_tile) : (!heads, index, index, index, index, !tile) -> ()
      "warp.copy_commit"() : () -> ()
      "warp.copy_wait"() {pending = 0} : () -> ()
      "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
      %start = "warp.load"(%o, %c0, %c0, %m) : (!out, index, index, index) -> !acc
      // The first two iterations', each if there is one; then the load before the loop is waited for.
      // CHECK: scf.if
      // CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]]) {stages = 3 : i64}
      // CHECK: "warp.view"(%[[RING]], %[[STAGE]]#0, %c0, %c0)
      // CHECK: "warp.copy_commit"()
      // CHECK: scf.if
      // CHECK: %[[SECOND:.*]] = arith.addi %[[COUNT]], %c1
      // CHECK: "warp.stage"(%[[SECOND]]) {stages = 3 : i64}
      // CHECK: "warp.copy_commit"()
      // CHECK: "warp.copy_wait"() {pending = 2 : i64}
      // CHECK-NEXT: "warp.named_sync"(%c1) {threads = 128 : i64}
      // CHECK: scf.for %[[N:.*]] = %c0 to %[[ROWS:.*]] step %c32 iter_args(%[[INNER:.*]] = %[[COUNT]],
      %1:2 = scf.for %n = %c0 to %rows step %c32 iter_args(%inner = %count, %sum = %start) -> (index, !acc) {
        // CHECK: "warp.stage"(%[[INNER]]) {stages = 3 : i64}
        %stage, %phase = "warp.stage"(%inner) {stages = 1 : i64} : (index) -> (index, index)
        %tile = "warp.view"(%ring, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        // Its own copies alone are waited for; all meet once.
        // CHECK: "warp.copy_wait"() {pending = 1 : i64}
        // CHECK-NEXT: "warp.named_sync"(%c1) {threads = 128 : i64}
        // CHECK-NEXT: %[[LATER:.*]] = arith.addi %[[N]], %c64
        // CHECK-NEXT: %[[SOME:.*]] = arith.cmpi slt, %[[LATER]], %[[ROWS]]
        // CHECK-NEXT: scf.if %[[SOME]] {
        // CHECK-NEXT: %[[AHEAD:.*]] = arith.addi %[[INNER]], %c2
        // CHECK-NEXT: "warp.stage"(%[[AHEAD]])
        // CHECK: "warp.copy_lanes_async"(%{{.*}}, %c0, %c0, %[[LATER]], %c0, %{{.*}})
        // CHECK: "warp.copy_commit"()
        // CHECK-NEXT: "warp.mma"
        // CHECK-NOT: warp.named_sync
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        "warp.copy_lanes_async"(%k, %c0, %c0, %n, %c0, %tile) : (!heads, index, index, index, index, !tile) -> ()
        "warp.copy_commit"() : () -> ()
        "warp.copy_wait"() {pending = 0} : () -> ()
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        %next = "warp.mma"(%sum, %a, %tile) {transpose_a = false, transpose_b = true} : (!acc, !half, !tile) -> !acc
        %after = arith.addi %inner, %c1 : index
        scf.yield %after, %next : index, !acc
      }
      // CHECK: "warp.store"
      "warp.store"(%1#1, %o, %c0, %c0, %m) : (!acc, !out, index, index, index) -> ()
      scf.yield %1#0 : index
    }
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "k", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912, warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// What is copied depends on what the iteration computes: no later one's is known.
// CHECK: warp.refused = {"warp-prefetch-loads" = "a copy depends on 'memref.load' of its iteration"}

!heads = memref<?x?x?x64xf16>
!ring = memref<1x32x64xf16, #warp.shared<128 : i64>>
!tile = memref<32x64xf16, #warp.shared<128 : i64>>

"warp.kernel"() ({
^bb0(%k: !heads, %rows: memref<?xindex>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %ring = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %c8 step %c1 {
      scf.for %n = %c0 to %c8 step %c1 {
        %row = memref.load %rows[%n] : memref<?xindex>
        %tile = "warp.view"(%ring, %c0, %c0, %c0) : (!ring, index, index, index) -> !tile
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        "warp.copy_lanes_async"(%k, %c0, %c0, %row, %c0, %tile) : (!heads, index, index, index, index, !tile) -> ()
        "warp.copy_commit"() : () -> ()
        "warp.copy_wait"() {pending = 0} : () -> ()
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
      }
    }
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "k", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912, warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// CHECK: warp.refused = {"warp-prefetch-loads" = "no inner loop holds copies of all warps"}
"warp.kernel"() ({
^bb0(%k: memref<?xindex>):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "k", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912, warp.schedule = {arch = "sm_80"}} : () -> ()

// -----

// A chip with TMA, whose warps copy nothing: nothing to say.
// CHECK: "warp.kernel"
// CHECK-NOT: warp.refused
"warp.kernel"() ({
^bb0(%k: memref<?xindex>):
  "warp.role"() ({
  ^bb0(%w: index):
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 248} : () -> ()
}) {sym_name = "hopper", function = "", registers = 248, lanes = 32, register_file = 65536, shared_limit = 166912} : () -> ()
