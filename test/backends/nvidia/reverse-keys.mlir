// A pass over keys whose scores have terms of positions begins with the last block.
// RUN: attn-opt %s --split-input-file -p 'warp-reverse-keys,canonicalize,cse' | FileCheck %s

!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// CHECK: ^bb0(%[[N:.*]]: index, %
// CHECK: %[[LAST:.*]] = arith.subi %[[N]], %c1
// CHECK: scf.for %[[COUNT:.*]] = %c0 to %[[N]] step %c1
// CHECK-NEXT: %[[BLOCK:.*]] = arith.subi %[[LAST]], %[[COUNT]]
// CHECK: arith.addi %[[BLOCK]], %{{.*}}
// CHECK: arith.sitofp
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?xf32>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !rows
    %all = scf.for %k = %c0 to %n step %c1 iter_args(%m = %start) -> (!rows) {
      %new = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %m[%i] : !rows
        %place = arith.addi %k, %i : index
        %whole = arith.index_cast %place : index to i32
        %y = arith.sitofp %whole : i32 to f32
        %z = arith.maximumf %x, %y {gpu.free} : f32
        "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      scf.yield %new : !rows
    }
    "warp.store"(%all, %o, %c0, %c0, %c0) : (!rows, memref<?x?x?xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>

// A sum has an order.
// CHECK: warp.refused = {"warp-reverse-keys" = "no loop carries a maximum for which any number may stand"}
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?xf32>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %start = ub.poison : !rows
    %all = scf.for %k = %c0 to %n step %c1 iter_args(%m = %start) -> (!rows) {
      %new = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %m[%i] : !rows
        %y = arith.addf %x, %x : f32
        "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      scf.yield %new : !rows
    }
    "warp.store"(%all, %o, %c0, %c0, %c0) : (!rows, memref<?x?x?xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
