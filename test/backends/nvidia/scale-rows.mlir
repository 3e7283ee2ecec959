// Maps read numbers of rows as they need them: the copy multiplies them, and bounds them from above, behind all that it copies otherwise.
// RUN: attn-opt %s --split-input-file -p 'warp-scale-rows' | FileCheck %s

!numbers = memref<?x?x?xf32>
!staged = memref<1x64xf32, #warp.shared<0 : i64>>
!full = !warp.barrier<1 : i64, 33 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK-NOT: "warp.copy_rows_async"
// CHECK: "warp.elect"
// CHECK: "warp.copy_rows_scaled"(%{{.*}}, %{{.*}}) {factor = -1.44269502 : f32, most = 3.40282347E+38 : f32}
// CHECK-NEXT: {{^ *}}}
// CHECK: "warp.map"
// CHECK-NEXT: ^bb0(
// CHECK-NEXT: %[[READ:.*]] = memref.load
// CHECK: "warp.yield"(%[[READ]])
"warp.kernel"() ({
^bb0(%lse: !numbers, %o: memref<?x?x?x64xf32>, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %factor = arith.constant -1.44269502 : f32
  %largest = arith.constant 3.40282347E+38 : f32
  %row_numbers = "warp.alloc"() : () -> !staged
  %full = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      "warp.copy_rows_async"(%lse, %c0, %c0, %m, %row_numbers, %full, %c0) : (!numbers, index, index, index, !staged, !full, index) -> ()
      "warp.elect"() ({
        "warp.arrive_expect"(%full, %c0) {bytes = 8192 : i64} : (!full, index) -> ()
      }) : () -> ()
    }
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
    %tile = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %x = memref.load %row_numbers[%c0, %j] : !staged
      %y = arith.mulf %x, %factor : f32
      %z = arith.minimumf %y, %largest : f32
      "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
    "warp.store"(%tile, %o, %c0, %c0, %c0) : (!acc, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-scale-rows" = "no copy brings numbers of rows"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
