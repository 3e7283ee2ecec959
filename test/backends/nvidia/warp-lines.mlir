// A slope times a column is a number of the thread, and one multiply-add with a literal an element; where the slope is an element's, it is not.
// RUN: attn-translate --to warp-cuda %s | FileCheck %s

!tile = tensor<64x64xf32, #warp.layout<"wgmma", "tile">>

// CHECK: // role all
// CHECK: const float [[COLUMN:.*]] = (float)([[LANE:.*]] % 4 * 2 + 0);
// CHECK-NEXT: const float [[START:.*]] = slope * [[COLUMN]];
// CHECK: for (int r = 0; r < 32; ++r) {
// CHECK-NOT: [[COLUMN]] +
// CHECK: const float [[LINE:.*]] = fmaf(slope, (float)(r % 2 + r / 4 % 8 * 8), [[START]]);
// CHECK-NEXT: const float {{.*}} = {{.*}}[r] + [[LINE]];
// CHECK: const float [[AGAIN:.*]] = (float)({{.*}});
// CHECK: for (int r = 0; r < 32; ++r) {
// CHECK: const float [[PLACE:.*]] = [[AGAIN]] + (float)(r % 2 + r / 4 % 8 * 8);
// CHECK: = {{.*}}[r] * [[PLACE]];
"warp.kernel"() ({
^bb0(%slope: f32 loc("slope"), %o: memref<?x?x?x64xf32>):
  %c0 = arith.constant 0 : index
  "warp.role"() ({
  ^bb0(%w: index):
    %scores = "warp.load"(%o, %c0, %c0, %c0) : (memref<?x?x?x64xf32>, index, index, index) -> !tile
    %sloped = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %whole = arith.index_cast %j : index to i32
      %x = arith.sitofp %whole : i32 to f32
      %y = arith.mulf %slope, %x : f32
      %z = arith.addf %s, %y : f32
      "warp.yield"(%z) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%sloped, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
    %scaled = "warp.map"() ({
    ^bb0(%i: index, %j: index):
      %s = tensor.extract %scores[%i, %j] : !tile
      %whole = arith.index_cast %j : index to i32
      %x = arith.sitofp %whole : i32 to f32
      %y = arith.mulf %s, %x : f32
      "warp.yield"(%y) {operandSegmentSizes = array<i32: 1, 0, 0>} : (f32) -> ()
    }) {reductions = [""], resultSegmentSizes = array<i32: 1, 0, 0>, shape = array<i64: 64, 64>} : () -> !tile
    "warp.store"(%scaled, %o, %c0, %c0, %c0) : (!tile, memref<?x?x?x64xf32>, index, index, index) -> ()
  }) {registers = 168 : i64, sym_name = "all", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f"} : () -> ()
