// The tile of an iteration is transposed in the next one, whose copy is on its way then; the last one after the loop.
// RUN: attn-opt %s -p 'warp-delay-transposes,canonicalize' | FileCheck %s
// RUN: sed 's/2x64x64/1x64x64/; s/barrier<2/barrier<1/; s/stages = 2/stages = 1/' %s | attn-opt - -p 'warp-delay-transposes' | FileCheck %s --check-prefix=ONE
// ONE: warp.refused = {"warp-delay-transposes" = "one stage leaves nothing to copy ahead"}

!heads = memref<?x?x?x64xf8E4M3FN>
!raw = memref<2x64x64xf8E4M3FN, #warp.shared<64 : i64>>
!tile = memref<64x64xf8E4M3FN, #warp.shared<64 : i64>>
!one = !warp.barrier<2 : i64, 1 : i64>
!four = !warp.barrier<2 : i64, 4 : i64>

// CHECK:      %[[COUNT:.*]] = scf.for %[[N:.*]] = %c0 to %[[END:.*]] step %c64 iter_args(%[[USES:.*]] = %c0) -> (index) {
// CHECK:        "warp.stage"(%[[USES]])
// CHECK:        "warp.copy_async"
// CHECK:        %[[LATER:.*]] = arith.cmpi sgt, %[[N]], %c0 : index
// CHECK:        scf.if %[[LATER]] {
// CHECK:          %[[BEFORE:.*]] = arith.subi %[[USES]], %c1 : index
// CHECK:          %[[STAGE:.*]]:2 = "warp.stage"(%[[BEFORE]])
// CHECK:          "warp.wait"(%{{.*}}, %[[STAGE]]#0, %[[STAGE]]#1)
// CHECK:          "warp.wait"
// CHECK-NEXT:     "warp.transpose"
// CHECK-NEXT:     "warp.fence_async"
// CHECK-NEXT:     "warp.arrive"
// CHECK-NEXT:     "warp.arrive"
// CHECK-NEXT:   }
// CHECK-NOT:    warp.transpose
// CHECK:        scf.yield
// CHECK:      %[[SOME:.*]] = arith.cmpi sgt, %[[END]], %c0 : index
// CHECK:      scf.if %[[SOME]] {
// CHECK:        %[[LAST:.*]] = arith.subi %[[COUNT]], %c1 : index
// CHECK:        "warp.stage"(%[[LAST]])
// CHECK:        "warp.transpose"
"warp.kernel"() ({
^bb0(%x: !heads):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %rows = memref.dim %x, %c2 : !heads
  %raw = "warp.alloc"() : () -> !raw
  %v = "warp.alloc"() : () -> !raw
  %landed = "warp.mbarrier"() : () -> !one
  %full = "warp.mbarrier"() : () -> !four
  %read = "warp.mbarrier"() : () -> !four
  %free = "warp.mbarrier"() : () -> !four
  "warp.role"() ({
  ^bb0(%w: index):
    %0 = scf.for %n = %c0 to %rows step %c64 iter_args(%count = %c0) -> (index) {
      %stage, %phase = "warp.stage"(%count) {stages = 2 : i64} : (index) -> (index, index)
      %to = "warp.view"(%v, %stage, %c0, %c0) : (!raw, index, index, index) -> !tile
      %from = "warp.view"(%raw, %stage, %c0, %c0) : (!raw, index, index, index) -> !tile
      %other = arith.xori %phase, %c1 : index
      "warp.wait"(%read, %stage, %other) : (!four, index, index) -> ()
      "warp.elect"() ({
        "warp.arrive_expect"(%landed, %stage) {bytes = 4096 : i64} : (!one, index) -> ()
        "warp.copy_async"(%x, %c0, %c0, %n, %c0, %from, %landed, %stage) : (!heads, index, index, index, index, !tile, !one, index) -> ()
      }) : () -> ()
      "warp.wait"(%landed, %stage, %phase) : (!one, index, index) -> ()
      "warp.wait"(%free, %stage, %other) : (!four, index, index) -> ()
      "warp.transpose"(%from, %to) : (!tile, !tile) -> ()
      "warp.fence_async"() : () -> ()
      "warp.arrive"(%read, %stage) : (!four, index) -> ()
      "warp.arrive"(%full, %stage) : (!four, index) -> ()
      %next = arith.addi %count, %c1 : index
      scf.yield %next : index
    }
  }) {registers = 40 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 248 : i64, shared_limit = 232448 : i64, sym_name = "x"} : () -> ()
