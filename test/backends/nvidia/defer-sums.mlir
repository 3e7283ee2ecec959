// Sums of rows that a loop scales and adds to are carried as parts, and reduced once, behind it.
// RUN: attn-opt %s --split-input-file -p 'warp-defer-sums,canonicalize,cse' | FileCheck %s

!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>

// CHECK: %[[P:.*]] = ub.poison : tensor<64x4xf32
// CHECK: %[[ZEROS:.*]] = "warp.map"() ({
// CHECK: -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
// CHECK: %[[LOOP:.*]] = scf.for %{{.*}} iter_args(%[[SUM:.*]] = %[[ZEROS]])
// CHECK-NOT: warp.reduce
// The factor of rows is computed by a map over them.
// CHECK: %[[FACTOR:.*]] = "warp.map"
// CHECK: math.exp2
// CHECK: %[[SCALED:.*]] = "warp.map"
// CHECK: %[[X:.*]] = tensor.extract %[[SUM]][%[[I:.*]], %{{.*}}]
// CHECK: %[[F:.*]] = tensor.extract %[[FACTOR]][%[[I]]]
// CHECK: arith.mulf %[[X]], %[[F]]
// CHECK: "warp.map"
// CHECK: tensor.extract %[[SCALED]]
// CHECK: tensor.extract %[[P]]
// CHECK: arith.addf
// CHECK: scf.yield
// CHECK: "warp.reduce"(%[[LOOP]]) {kind = "sum"}
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?xf32>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %m = ub.poison : !rows
    %p = ub.poison : !parts
    %start = "warp.map"() ({
    ^bb0(%i: index):
      "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
    %all = scf.for %k = %c0 to %n step %c1 iter_args(%sum = %start) -> (!rows) {
      %scaled:2 = "warp.map"() ({
      ^bb0(%i: index):
        %x = tensor.extract %m[%i] : !rows
        %f = math.exp2 %x : f32
        %s = tensor.extract %sum[%i] : !rows
        %y = arith.mulf %s, %f : f32
        "warp.yield"(%f, %y) {operandSegmentSizes = array<i32: 2, 0, 0>} : (f32, f32) -> ()
      }) {reductions = ["", ""], resultSegmentSizes = array<i32: 2, 0, 0>, shape = array<i64: 64>} : () -> (!rows, !rows)
      "warp.store"(%scaled#0, %o, %c0, %c0, %c0) : (!rows, memref<?x?x?xf32>, index, index, index) -> ()
      %more = "warp.reduce"(%p) {kind = "sum"} : (!parts) -> !rows
      %new = "warp.map"() ({
      ^bb0(%i: index):
        %a = tensor.extract %scaled#1[%i] : !rows
        %b = tensor.extract %more[%i] : !rows
        %y = arith.addf %a, %b : f32
        "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      scf.yield %new : !rows
    }
    "warp.store"(%all, %o, %c0, %c0, %c0) : (!rows, memref<?x?x?xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!rows = tensor<64xf32, #warp.layout<"wgmma", "rows">>
!parts = tensor<64x4xf32, #warp.layout<"wgmma", "parts">>

// An iteration that adds its square to a sum needs all of it.
// CHECK: warp.refused = {"warp-defer-sums" = "a loop does more with row values than to scale them and to add sums of parts"}
"warp.kernel"() ({
^bb0(%n: index, %o: memref<?x?x?xf32>):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  "warp.role"() ({
  ^bb0(%w: index):
    %start = "warp.map"() ({
    ^bb0(%i: index):
      "warp.yield"(%zero) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
    %all = scf.for %k = %c0 to %n step %c1 iter_args(%sum = %start) -> (!rows) {
      %new = "warp.map"() ({
      ^bb0(%i: index):
        %a = tensor.extract %sum[%i] : !rows
        %b = arith.mulf %a, %a : f32
        %y = arith.addf %a, %b : f32
        "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
      }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64>} : () -> !rows
      scf.yield %new : !rows
    }
    "warp.store"(%all, %o, %c0, %c0, %c0) : (!rows, memref<?x?x?xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
