// v and o become as narrow as the sums of a wave; keys of 1024 columns fill shared memory, and values follow where they were.
// RUN: sed -e 's/x64xf32/x1024xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: attn-opt %t.wide -p 'amd-slice-values' | FileCheck %s
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'amd-slice-values' | FileCheck %s --check-prefix=NARROW
// RUN: not attn-opt %t.wide -p 'amd-slice-values{columns=20}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: attn-translate --to amd-kernel %t.wide | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate --to hip %t.wide | FileCheck %s --check-prefix=HIP

// CHECK: func.func @attention(%[[Q:[a-z0-9]+]]: tensor<?x?x?x1024xf16>, %[[K:[a-z0-9]+]]: tensor<?x?x?x1024xf16>, %[[V:[a-z0-9]+]]: tensor<?x?x?x256xf16>) -> (tensor<?x?x?x256xf16>, tensor<?x?x?xf32>)
// CHECK-SAME: tile.choices = {launch_columns = 256 : i64, launch_values = 2 : i64}
// NARROW-NOT: tile.choices
// INVALID: error: amd-slice-values: `columns` must be a positive multiple of 8, got 20
// PLAN: tile.schedule = {arch = "gfx90a", emitter = "mfma", in_turn = 2 : i64, launch_columns = 256 : i64, launch_values = 2 : i64, recompute = 1 : i64, reverse = 1 : i64, waves = 1 : i64}
// HIP: keep_eight<128>(memory + 0
// HIP: attn::product_f16<1, 64, 128>(s, memory + 0
// HIP: attn::barrier();
// HIP: keep_transposed<4>(memory + 0
// HIP: attn::barrier();
// HIP: attn::product_f16<8, 2, 4>({{.*}}, memory + 0
