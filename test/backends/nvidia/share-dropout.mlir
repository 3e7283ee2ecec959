// Bits of dropout are made by all lanes for their warp, once weights are rounded: the map makes weights as without dropout.
// RUN: attn-opt %s --split-input-file -p 'warp-share-dropout,canonicalize,cse' | FileCheck %s

!scores = tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
!weights = tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!keys = memref<128x64xf16, #warp.shared<128 : i64>>

// CHECK: %[[BITS:.*]] = "warp.alloc"() : () -> memref<1x512xi32, #warp.shared<0 : i64>>
// CHECK: "warp.role"() ({
// CHECK-NEXT: ^bb0
// CHECK-NEXT: memref.load %{{.*}}[] : memref<i64>
// CHECK: %[[WEIGHTS:.*]] = "warp.map"() ({
// CHECK-NOT: attn.kept
// CHECK: %[[E:.*]] = math.exp2
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[E]]
// CHECK-NEXT: "warp.yield"(%[[H]])
// CHECK: %[[DROPPED:.*]] = "warp.drop"(%[[WEIGHTS]], %[[BITS]]) ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[KEY:.*]] = arith.addi %{{.*}}, %[[J]]
// CHECK: %[[KEPT:.*]] = "attn.kept"({{.*}}, %{{.*}}, %[[KEY]])
// CHECK-NEXT: "warp.yield"(%[[KEPT]])
// CHECK: {unroll = 7 : i64}
// CHECK: "warp.mma_async"(%{{.*}}, %[[DROPPED]],
// CHECK: sym_name = "f"} :
"warp.kernel"() ({
^bb0(%seed: memref<i64>, %drop: index, %first: index, %heads: index):
  %zero = arith.constant 0.0 : f32
  %yes = arith.constant true
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !scores
    %start = ub.poison : !sums
    %v = ub.poison : !keys
    %word = memref.load %seed[] : memref<i64>
    %key = arith.index_cast %word : i64 to index
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %q = arith.addi %first, %i : index
      %k = arith.addi %first, %j : index
      %kept = "attn.kept"(%key, %drop, %drop, %heads, %w, %w, %q, %k) : (index, index, index, index, index, index, index, index) -> i1
      %s = tensor.extract %scores[%i, %j] : !scores
      %e = math.exp2 %s : f32
      %p = arith.select %kept, %e, %zero : f32
      %h = arith.truncf %p : f32 to f16
      "warp.yield"(%h) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> !weights
    "warp.mma_begin"() : () -> ()
    %o = "warp.mma_async"(%start, %weights, %v, %yes) {transpose_a = false, transpose_b = false} : (!sums, !weights, !keys, i1) -> !warp.pending<!sums>
    "warp.mma_commit"() : () -> ()
    %done = "warp.mma_wait"(%o) {pending = 0 : i64} : (!warp.pending<!sums>) -> !sums
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!scores = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!weights = tensor<64x64xf16, #warp.layout<"wgmma", "tile">>
!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!keys = memref<64x64xf16, #warp.shared<128 : i64>>

// CHECK: attn.kept
// CHECK-NOT: warp.drop
// CHECK: warp.refused = {"warp-share-dropout" = "lanes make bits of 128 columns at a time, and a tile is 64x64"}
"warp.kernel"() ({
^bb0(%seed: index, %drop: index, %first: index, %heads: index):
  %zero = arith.constant 0.0 : f32
  %yes = arith.constant true
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !scores
    %start = ub.poison : !sums
    %v = ub.poison : !keys
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %q = arith.addi %first, %i : index
      %k = arith.addi %first, %j : index
      %kept = "attn.kept"(%seed, %drop, %drop, %heads, %w, %w, %q, %k) : (index, index, index, index, index, index, index, index) -> i1
      %s = tensor.extract %scores[%i, %j] : !scores
      %p = arith.select %kept, %s, %zero : f32
      %h = arith.truncf %p : f32 to f16
      "warp.yield"(%h) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !weights
    "warp.mma_begin"() : () -> ()
    %o = "warp.mma_async"(%start, %weights, %v, %yes) {transpose_a = false, transpose_b = false} : (!sums, !weights, !keys, i1) -> !warp.pending<!sums>
    "warp.mma_commit"() : () -> ()
    %done = "warp.mma_wait"(%o) {pending = 0 : i64} : (!warp.pending<!sums>) -> !sums
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()

// -----

!scores = tensor<64x128xf32, #warp.layout<"wgmma", "tile">>
!weights = tensor<64x128xf16, #warp.layout<"wgmma", "tile">>
!sums = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>
!keys = memref<128x64xf16, #warp.shared<128 : i64>>

// CHECK: attn.kept
// CHECK-NOT: warp.drop
// CHECK: warp.refused = {"warp-share-dropout" = "rows of a map are not those of one head"}
"warp.kernel"() ({
^bb0(%seed: index, %drop: index, %first: index, %heads: index):
  %zero = arith.constant 0.0 : f32
  %yes = arith.constant true
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = ub.poison : !scores
    %start = ub.poison : !sums
    %v = ub.poison : !keys
    %weights = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %q = arith.addi %first, %i : index
      %k = arith.addi %first, %j : index
      %kept = "attn.kept"(%seed, %drop, %drop, %heads, %w, %q, %q, %k) : (index, index, index, index, index, index, index, index) -> i1
      %s = tensor.extract %scores[%i, %j] : !scores
      %p = arith.select %kept, %s, %zero : f32
      %h = arith.truncf %p : f32 to f16
      "warp.yield"(%h) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f16) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 128>} : () -> !weights
    "warp.mma_begin"() : () -> ()
    %o = "warp.mma_async"(%start, %weights, %v, %yes) {transpose_a = false, transpose_b = false} : (!sums, !weights, !keys, i1) -> !warp.pending<!sums>
    "warp.mma_commit"() : () -> ()
    %done = "warp.mma_wait"(%o) {pending = 0 : i64} : (!warp.pending<!sums>) -> !sums
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
