// Maps read numbers of rows with the terms of their places: the copy adds a head's slope times the place, which it computes before.
// RUN: attn-opt %s --split-input-file -p 'warp-slope-rows' | FileCheck %s

!numbers = memref<?x?x?xf32>
!staged = memref<1x64xf32, #warp.shared<0 : i64>>
!full = !warp.barrier<1 : i64, 33 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: "warp.kernel"
// CHECK-NEXT: ^bb0(%[[LSE:[^:]*]]: {{.*}}, %[[SLOPES:[^:]*]]: memref<?xf32>
// CHECK: scf.for %[[ROW:.*]] =
// CHECK: scf.if
// CHECK-NEXT: %[[SLOPE:.*]] = memref.load %[[SLOPES]]
// CHECK-NEXT: %[[SCALED:.*]] = arith.mulf %[[SLOPE]],
// CHECK-NEXT: "warp.copy_rows_scaled"(%[[LSE]], %{{.*}}, %{{.*}}, %[[ROW]], %[[SCALED]], {{.*}}) {factor = -1.44269502 : f32, most = 3.40282347E+38 : f32}
// CHECK: "warp.map"
// CHECK: %[[READ:.*]] = memref.load
// CHECK: "warp.yield"(%[[READ]])
"warp.kernel"() ({
^bb0(%lse: !numbers, %slopes: memref<?xf32>, %o: memref<?x?x?x64xf32>, %n: index, %leads: i1):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %factor = arith.constant -1.44269502 : f32
  %largest = arith.constant 3.40282347E+38 : f32
  %row_numbers = "warp.alloc"() : () -> !staged
  %full = "warp.mbarrier"() : () -> !full
  "warp.role"() ({
  ^bb0(%w: index):
    scf.for %m = %c0 to %n step %c1 {
      scf.if %leads {
        "warp.copy_rows_async"(%lse, %c0, %c0, %m, %row_numbers, %full, %c0) : (!numbers, index, index, index, !staged, !full, index) -> ()
      }
      %slope = memref.load %slopes[%c0] : memref<?xf32>
      %scaled = arith.mulf %slope, %factor : f32
      %tile = "warp.map"() ({
      ^bb0(%i: index, %j: index):
        %x = memref.load %row_numbers[%c0, %j] : !staged
        %y = arith.mulf %x, %factor : f32
        %whole = arith.index_cast %j : index to i64
        %place = arith.sitofp %whole : i64 to f32
        %term = arith.mulf %scaled, %place : f32
        %sum = arith.addf %term, %y : f32
        %z = arith.minimumf %sum, %largest : f32
        "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !acc
      "warp.store"(%tile, %o, %c0, %c0, %c0) : (!acc, memref<?x?x?x64xf32>, index, index, index) -> ()
    }
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

// CHECK: warp.refused = {"warp-slope-rows" = "no copy brings numbers of rows"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
    "warp.fence_async"() : () -> ()
  }) {registers = 160 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
