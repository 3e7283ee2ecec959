// The loads of an iteration are waited for at the first of them: all meet once, and the copies of the next iteration begin there.
// RUN: attn-opt %s -p 'warp-prefetch-loads{together=true},canonicalize,cse' | FileCheck %s
// RUN: sed -e 's/arch = "sm_80"/arch = "sm_80", together = 1 : i64/' %s | attn-opt - -p 'warp-prefetch-loads,canonicalize,cse' | FileCheck %s

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
  // CHECK: %[[FIRST:.*]] = "warp.alloc"() : () -> memref<2x32x64xf16
  // CHECK: %[[SECOND:.*]] = "warp.alloc"() : () -> memref<2x32x64xf16
  %first = "warp.alloc"() : () -> !ring
  %second = "warp.alloc"() : () -> !ring
  "warp.role"() ({
  ^bb0(%w: index):
    %a = "warp.load"(%q, %c0, %c0, %c0) : (!heads, index, index, index) -> !half
    scf.for %m = %c0 to %rows step %c32 {
      %start = "warp.load"(%o, %c0, %c0, %m) : (!out, index, index, index) -> !acc
      // CHECK: scf.for %{{.*}} step %c32 iter_args
      %1:2 = scf.for %n = %c0 to %rows step %c32 iter_args(%count = %c0, %sum = %start) -> (index, !acc) {
        %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
        %tile = "warp.view"(%first, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        // CHECK: "warp.copy_wait"() {pending = 0 : i64}
        // CHECK-NEXT: "warp.named_sync"
        // CHECK: scf.if
        // CHECK: "warp.view"(%[[FIRST]],
        // CHECK: "warp.copy_commit"()
        // CHECK-NEXT: scf.if
        // CHECK: "warp.view"(%[[SECOND]],
        // CHECK: "warp.copy_commit"()
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        "warp.copy_lanes_async"(%k, %c0, %c0, %n, %c0, %tile) : (!heads, index, index, index, index, !tile) -> ()
        "warp.copy_commit"() : () -> ()
        "warp.copy_wait"() {pending = 0} : () -> ()
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        // CHECK: "warp.mma"
        %s = "warp.mma"(%sum, %a, %tile) {transpose_a = false, transpose_b = true} : (!acc, !half, !tile) -> !acc
        %other = "warp.view"(%second, %stage, %c0, %c0) : (!ring, index, index, index) -> !tile
        // CHECK-NOT: warp.named_sync
        // CHECK: "warp.mma"
        // CHECK-NOT: warp.copy_wait
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        "warp.copy_lanes_async"(%q, %c0, %c0, %n, %c0, %other) : (!heads, index, index, index, index, !tile) -> ()
        "warp.copy_commit"() : () -> ()
        "warp.copy_wait"() {pending = 0} : () -> ()
        "warp.named_sync"(%c1) {threads = 128} : (index) -> ()
        %t = "warp.mma"(%s, %a, %other) {transpose_a = false, transpose_b = true} : (!acc, !half, !tile) -> !acc
        %next = arith.addi %count, %c1 : index
        scf.yield %next, %t : index, !acc
      }
      "warp.store"(%1#1, %o, %c0, %c0, %m) : (!acc, !out, index, index, index) -> ()
    }
  }) {registers = 128 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 128 : i64, shared_limit = 166912 : i64, sym_name = "f",
    warp.schedule = {arch = "sm_80"}} : () -> ()
