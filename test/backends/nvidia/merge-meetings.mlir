// The thread that waits for a copy does so before all warpgroups meet: its own needs no meeting more.
// RUN: attn-opt %s --split-input-file -p 'warp-merge-meetings' | FileCheck %s

!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!tile = memref<64x64xf32, #warp.shared<128 : i64>>
!buffer = memref<1x128x64xf32, #warp.shared<128 : i64>>

// CHECK: scf.for
// CHECK-NEXT: "warp.elect"() ({
// CHECK-NEXT: "warp.store_wait"() {pending = 0 : i64, read = true}
// CHECK-NEXT: }) : () -> ()
// CHECK-NEXT: "warp.named_sync"(%c12{{.*}}) {threads = 256 : i64}
// CHECK-NEXT: "warp.write"
// CHECK-NEXT: "warp.fence_async"
// CHECK-NEXT: "warp.named_sync"(%{{.*}}) {threads = 128 : i64}
"warp.kernel"() ({
^bb0(%dq: memref<?x?x?x64xf32>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %buffer = "warp.alloc"() : () -> !buffer
  "warp.role"() ({
  ^bb0(%w: index):
    %sums = ub.poison : !acc
    %first = arith.muli %w, %c64 : index
    %own = arith.addi %w, %c8 : index
    %view = "warp.view"(%buffer, %c0, %first, %c0) : (!buffer, index, index, index) -> !tile
    scf.for %m = %c0 to %n step %c1 {
      "warp.named_sync"(%c12) {threads = 256 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.store_wait"() {pending = 0 : i64, read = true} : () -> ()
      }) : () -> ()
      "warp.named_sync"(%own) {threads = 128 : i64} : (index) -> ()
      "warp.write"(%sums, %view) : (!acc, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.named_sync"(%own) {threads = 128 : i64} : (index) -> ()
      "warp.elect"() ({
        "warp.add_async"(%view, %dq, %c0, %c0, %m, %c0) {ordered = false} : (!tile, memref<?x?x?x64xf32>, index, index, index, index) -> ()
        "warp.store_commit"() : () -> ()
      }) : () -> ()
    }
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 2 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-merge-meetings" = "no thread waits for a copy before its warpgroup meets"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
