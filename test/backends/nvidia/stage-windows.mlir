// Windows of a dense bias come with each block of keys: a copy for each warpgroup, 64 rows further on, to stages of its own.
// RUN: attn-opt %s --split-input-file -p 'warp-stage-windows{stages=2}' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'warp-stage-windows{stages=2},warp-specialize,canonicalize,cse' | FileCheck %s --check-prefix=ROLES

!heads = memref<?x?x?x64xf16>
!bias = memref<?x?x?xf32>
!queries = memref<1x128x64xf16, #warp.shared<128 : i64>>
!rows = memref<128x64xf16, #warp.shared<128 : i64>>
!ring = memref<1x64x64xf16, #warp.shared<128 : i64>>
!keys = memref<64x64xf16, #warp.shared<128 : i64>>
!full = !warp.barrier<1 : i64, 1 : i64>
!free = !warp.barrier<1 : i64, 8 : i64>
!acc = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: ^bb0(%[[Q:.*]]: memref<?x?x?x64xf16>, %[[BIAS:.*]]: memref<?x?x?xf32>
// CHECK: %[[BUFFER:.*]] = "warp.alloc"() : () -> memref<4x64x64xf32, #warp.shared<128 : i64>>
// CHECK: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<4 : i64, 32 : i64>
// CHECK: %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<4 : i64, 4 : i64>
// CHECK: scf.for
// CHECK: scf.for %{{.*}} iter_args(%[[COUNT:.*]] = %{{.*}})
// CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%[[COUNT]]) {stages = 2 : i64}
// CHECK: "warp.copy_async"
// CHECK: "warp.wait"(%[[FREE]], %[[FIRST:.*]], %[[OTHER:.*]])
// CHECK: "warp.copy_window_async"(%[[BIAS]], %c0, %{{.*}}, %[[KEY:.*]], %{{.*}}, %[[FULL]], %[[FIRST]]) {rows = 1 : i64}
// CHECK: "warp.wait"(%[[FREE]], %[[SECOND:.*]], %[[OTHER]])
// CHECK: "warp.copy_window_async"(%[[BIAS]], %c0, %{{.*}}, %[[KEY]], %{{.*}}, %[[FULL]], %[[SECOND]]) {rows = 1 : i64}
// CHECK: %[[OWN:.*]] = arith.addi %{{.*}}, %[[STAGE]]#0
// CHECK: %[[TILE:.*]] = "warp.view"(%[[BUFFER]], %[[OWN]]
// CHECK: "warp.wait"(%[[FULL]], %[[OWN]], %[[STAGE]]#1)
// CHECK: "warp.mma_wait"
// CHECK: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NOT: memref.load %[[BIAS]]
// CHECK: memref.load %[[TILE]][%[[I]], %[[J]]] : memref<64x64xf32
// CHECK: "warp.arrive"(%[[FREE]], %[[OWN]])
// ROLES: "warp.copy_window_async"
// ROLES: "warp.copy_window_async"
// ROLES: sym_name = "producer"
// ROLES-NOT: "warp.copy_window_async"
"warp.kernel"() ({
^bb0(%q: !heads, %bias: !bias, %n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  %false = arith.constant false
  %size = memref.dim %q, %c2 : !heads
  %last = arith.subi %size, %c1 : index
  %queries = "warp.alloc"() : () -> !queries
  %there = "warp.mbarrier"() : () -> !full
  %buffer = "warp.alloc"() : () -> !ring
  %full = "warp.mbarrier"() : () -> !full
  %free = "warp.mbarrier"() : () -> !free
  "warp.role"() ({
  ^bb0(%w: index):
    %first = arith.muli %w, %c64 : index
    %leads = arith.cmpi eq, %w, %c0 : index
    scf.for %tile = %c0 to %n step %c1 iter_args(%all = %c0) -> (index) {
      %rows = "warp.view"(%queries, %c0, %c0, %c0) : (!queries, index, index, index) -> !rows
      scf.if %leads {
        "warp.elect"() ({
          "warp.arrive_expect"(%there, %c0) {bytes = 16384 : i64} : (!full, index) -> ()
          "warp.copy_async"(%q, %c0, %c0, %tile, %c0, %rows, %there, %c0) : (!heads, index, index, index, index, !rows, !full, index) -> ()
        }) : () -> ()
      }
      %counted = scf.for %key = %c0 to %n step %c64 iter_args(%count = %all) -> (index) {
        %stage, %phase = "warp.stage"(%count) {stages = 1 : i64} : (index) -> (index, index)
        %view = "warp.view"(%buffer, %stage, %c0, %c0) : (!ring, index, index, index) -> !keys
        scf.if %leads {
          %other = arith.xori %phase, %c1 : index
          "warp.wait"(%free, %stage, %other) : (!free, index, index) -> ()
          "warp.elect"() ({
            "warp.arrive_expect"(%full, %stage) {bytes = 8192 : i64} : (!full, index) -> ()
            "warp.copy_async"(%q, %c0, %c0, %key, %c0, %view, %full, %stage) : (!heads, index, index, index, index, !keys, !full, index) -> ()
          }) : () -> ()
        }
        "warp.wait"(%full, %stage, %phase) : (!full, index, index) -> ()
        %own = "warp.view"(%queries, %c0, %first, %c0) : (!queries, index, index, index) -> !keys
        %start = "warp.registers"() : () -> !acc
        "warp.mma_begin"() : () -> ()
        %product = "warp.mma_async"(%start, %own, %view, %false) {transpose_a = false, transpose_b = true} : (!acc, !keys, !keys, i1) -> !warp.pending<!acc>
        "warp.mma_commit"() : () -> ()
        %scores = "warp.mma_wait"(%product) {pending = 0 : i64} : (!warp.pending<!acc>) -> !acc
        "warp.arrive"(%free, %stage) : (!free, index) -> ()
        %values = "warp.map"() ({
        ^bb0(%i: index, %j: index):
          %row = arith.addi %first, %i : index
          %query = arith.addi %tile, %row : index
          %exists = arith.minsi %query, %last : index
          %at = arith.addi %key, %j : index
          %x = memref.load %bias[%c0, %exists, %at] : !bias
          %s = tensor.extract %scores[%i, %j] : !acc
          %y = arith.addf %s, %x : f32
          "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
        }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> !acc
        %next = arith.addi %count, %c1 : index
        scf.yield %next : index
      }
      scf.yield %counted : index
    }
  }) {sym_name = "all", warpgroups = 2, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// CHECK: "warp.kernel"
// CHECK: warp.refused = {"warp-stage-windows" = "a map reads a captured tensor at places that are no box of rows along one dimension and columns along the last one"}
"warp.kernel"() ({
^bb0(%table: memref<?x?xf32>):
  "warp.role"() ({
  ^bb0(%w: index):
    %t = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %at = arith.addi %i, %j : index
      %x = memref.load %table[%i, %at] : memref<?x?xf32>
      "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()

// -----

// CHECK: warp.refused = {"warp-stage-windows" = "windows have elements of f16, bf16, f32, not i32"}
"warp.kernel"() ({
^bb0(%table: memref<?x?xi32>):
  "warp.role"() ({
  ^bb0(%w: index):
    %t = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %x = memref.load %table[%i, %j] : memref<?x?xi32>
      "warp.yield"(%x) {operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
    }) {reductions = [""], shape = array<i64: 64, 64>, resultSegmentSizes = array<i32: 1, 0, 0>} : () -> tensor<64x64xi32, #warp.layout<"wgmma", "tile">>
  }) {sym_name = "all", warpgroups = 1, warps = 4, registers = 168} : () -> ()
}) {sym_name = "f", function = "", registers = 168, lanes = 32, register_file = 65536, shared_limit = 232448} : () -> ()
