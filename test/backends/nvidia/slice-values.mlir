// v and o become as narrow as the sums of a warpgroup; the driver is told which argument v is, and how many columns a launch sees.
// RUN: sed -e 's/x64xf32/x576xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: attn-opt %t.wide -p 'nvidia-slice-values' | FileCheck %s
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'nvidia-slice-values' | FileCheck %s --check-prefix=NARROW
// RUN: sed -e 's/x64xf32/x257xf16/g' %inputs/causal-softmax.mlir > %t.odd
// RUN: not attn-opt %t.odd -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: not attn-opt %t.wide -p 'nvidia-slice-values{columns=20}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: sed -e 's/return %o, %lse/%c = tensor.cast %o : tensor<?x?x?x576xf16> to tensor<?x?x?x576xf16>\n  return %c, %lse/' %t.wide > %t.inside
// RUN: not attn-opt %t.inside -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=INSIDE

// CHECK: func.func @attention(%[[Q:[a-z0-9]+]]: tensor<?x?x?x576xf16>, %[[K:[a-z0-9]+]]: tensor<?x?x?x576xf16>, %[[V:[a-z0-9]+]]: tensor<?x?x?x192xf16>) -> (tensor<?x?x?x192xf16>, tensor<?x?x?xf32>)
// CHECK-SAME: tile.choices = {block_kv = 32 : i64, block_q = 64 : i64, launch_columns = 192 : i64, launch_values = 2 : i64}
// CHECK: "attn.attention"(%[[Q]], %[[K]], %[[V]])
// CHECK: (tensor<?x?x?x576xf16>, tensor<?x?x?x576xf16>, tensor<?x?x?x192xf16>) -> (tensor<?x?x?x192xf16>, tensor<?x?x?xf32>)
// NARROW-NOT: tile.choices
// ODD: error: v has head dimension 257: more than 256 columns are seen in slices, which take multiples of 8: pad v with zeros
// INVALID: error: nvidia-slice-values: `columns` must be a positive multiple of 8, got 20
// INSIDE: error: nvidia-slice-values: v of 576 columns must come from outside of the kernel, and o leave it
