// Rings that tiles load keep one stage where the schedule says so.
// RUN: attn-opt %s -p 'warp-pipeline-tiles' | FileCheck %s
// A copier and a consumer, and a schedule that wants one stage.
// CHECK: warp.refused = {"warp-pipeline-tiles" = "the schedule says that what tiles load has one stage"}
"warp.kernel"() ({
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 24 : i64, sym_name = "producer", warpgroups = 1 : i64, warps = 1 : i64} : () -> ()
  "warp.role"() ({
  ^bb0(%w: index):
  }) {registers = 160 : i64, sym_name = "consumer", warpgroups = 1 : i64, warps = 4 : i64} : () -> ()
}) {function = "", lanes = 32 : i64, register_file = 65536 : i64, registers = 168 : i64, shared_limit = 232448 : i64, sym_name = "f", warp.schedule = {tile_stages = 1 : i64}} : () -> ()
