// Derived online programs, with several passes, accumulators and captured values among them, come back as rows of equal value.
// RUN: attn-run %S/../Inputs/layer-norm.mlir -p 'attn-online-rewrite,attn-recover-rows' | FileCheck %s
// RUN: attn-run %S/../Inputs/std-temperature.mlir -p 'attn-online-rewrite,attn-recover-rows' | FileCheck %s
// RUN: attn-run %S/../Inputs/sink.mlir -p 'attn-online-rewrite,attn-recover-rows' | FileCheck %s
// RUN: attn-run %S/../Inputs/retention.mlir -p 'attn-online-rewrite,attn-recover-rows' | FileCheck %s
// RUN: attn-run %S/../Inputs/empty-rows.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-recover-rows' | FileCheck %s
// CHECK: PASS
