// RUN: env ATTN_MLIR_CPU=amx attn-translate %s --to cpu-kernel | FileCheck %s
// RUN: env ATTN_MLIR_CPU=amx attn-translate %s --to llvm | FileCheck %s --check-prefix=LLVM
// RUN: env ATTN_MLIR_CPU=amx-emulated attn-translate %s --to llvm | FileCheck %s --check-prefix=EMULATED
// RUN: env ATTN_MLIR_CPU=avx512 attn-translate %s --to cpu-kernel | FileCheck %s --check-prefix=PAIRS

// Keys stay in memory, whose rows are those of the left factor; values lie in pairs, column by column.
// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    block_kv = 128 : i64, block_q = 64 : i64
// CHECK:         "tile.load"({{.*}}) {buffer = [{{[0-9]+}}], layout = ["lane_pairs"]}
// CHECK:         "tile.load"({{.*}}) {buffer = [-1], layout = ["memory"]}
// CHECK:         "tile.dot"({{.*}}) {buffer = [{{[0-9]+}}], layout = ["lanes"], tiles{{.*}}}
// CHECK:         "tile.load"({{.*}}) {buffer = [{{[0-9]+}}], layout = ["column_pairs"], width = 64 : i64}
// CHECK:         "tile.dot_rescale"({{.*}}) {buffer = [{{[0-9]+}}], layout = ["lanes"], tiles{{.*}}}

// Blocks of 64 rows and 128 keys, 32 and 32 at a time: four tiles of sums, and each factor is loaded once for two products.
// LLVM-LABEL: define void @attention(
// LLVM-COUNT-4: call x86_amx @llvm.x86.tilezero.internal(i16 16, i16 64)
// LLVM-COUNT-3: call x86_amx @llvm.x86.tileloadd64.internal(i16 16, i16 64,
// LLVM-COUNT-2: call x86_amx @llvm.x86.tdpbf16ps.internal(i16 16, i16 64, i16 64,
// LLVM:         call x86_amx @llvm.x86.tileloadd64.internal(i16 16, i16 64,
// LLVM-COUNT-2: call x86_amx @llvm.x86.tdpbf16ps.internal(i16 16, i16 64, i16 64,
// LLVM-COUNT-4: call void @llvm.x86.tilestored64.internal(i16 16, i16 64,

// EMULATED-LABEL: define void @attention(
// EMULATED:       alloca i32, i64 256
// EMULATED-NOT:   x86_amx
// EMULATED-NOT:   avx512bf16

// PAIRS-LABEL: func.func @attention(
// PAIRS-NOT:     tiles
// PAIRS:         layout = ["row_pairs"]
func.func @attention(%q: tensor<?x?x?x32xbf16>, %k: tensor<?x?x?x32xbf16>, %v: tensor<?x?x?x32xbf16>) -> tensor<?x?x?x32xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%score) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x32xbf16>, tensor<?x?x?x32xbf16>, tensor<?x?x?x32xbf16>) -> tensor<?x?x?x32xbf16>
  return %o : tensor<?x?x?x32xbf16>
}
