// Thread blocks of a cluster share the columns of q, k, v and o, where the rest of the pipeline makes such a kernel. Else v and o become as
// narrow as the sums of a warpgroup; the driver is told which argument v is, and how many columns a launch sees.
// RUN: sed -e 's/x64xf32/x576xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: sed -e 's/x64xf32/x512xf16/g; 1s/) {$/) attributes {tile.choices = {cluster = 2 : i64}} {/' %inputs/causal-softmax.mlir > %t.shared
// RUN: attn-opt %t.shared -p 'nvidia-slice-values' | FileCheck %s --check-prefix=CLUSTER
// RUN: sed -e '1s/) {$/) attributes {tile.choices = {cluster = 1 : i64}} {/' %t.wide > %t.alone
// RUN: attn-opt %t.alone -p 'nvidia-slice-values' | FileCheck %s
// RUN: sed -e 's/x64xf32/x512xf16/g' %inputs/query-key-value-mods.mlir > %t.mods
// RUN: attn-opt %t.mods -p 'nvidia-slice-values' | FileCheck %s --check-prefix=MODS
// RUN: sed -e 's/cluster = 1/cluster = 2/' %t.alone > %t.few
// RUN: not attn-opt %t.few -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FEW
// What a module keeps for its kernels is asked for, too; what cannot be had is refused, not left out.
// RUN: sed -e 's/x64xf32/x512xf16/g; 1i module attributes {nvidia.tuned = {"every kernel" = {cluster = 2 : i64}}} {' -e '$a }' %inputs/causal-softmax.mlir > %t.tuned
// RUN: attn-opt %t.tuned -p 'nvidia-slice-values' | FileCheck %s --check-prefix=CLUSTER
// RUN: sed -e 's/"every kernel"/attention/; s/cluster = 2/cluster = 5/' %t.tuned > %t.five
// RUN: not attn-opt %t.five -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FIVE
// RUN: sed -e 's/x512xf16/x64xf16/g' %t.tuned > %t.small
// RUN: not attn-opt %t.small -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: sed -e 's/x512xf16/x64xf16/g; s/cluster = 2/cluster = 1/' %t.tuned > %t.usual
// RUN: attn-opt %t.usual -p 'nvidia-slice-values' | FileCheck %s --check-prefix=NARROW
// RUN: sed -e 's/cluster = 2 : i64/cluster = 2 : i64, order = "dynamic"/' %t.shared > %t.drawn
// RUN: not attn-opt %t.drawn -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: sed -e 's/cluster = 2 : i64/cluster = 2 : i64, flow = "flat"/' %t.shared > %t.flat
// RUN: not attn-opt %t.flat -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: sed -e 's/cluster = 2 : i64/cluster = 2 : i64, block_q = 64 : i64/' %t.shared > %t.rows
// RUN: not attn-opt %t.rows -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: sed -e '/^func.func/s/ {$/ attributes {tile.choices = {cluster = 2 : i64}} {/' %inputs/linear/half.mlir > %t.linear
// RUN: not attn-opt %t.linear -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=SCAN
// RUN: attn-opt %inputs/causal-softmax.mlir -p 'nvidia-slice-values' | FileCheck %s --check-prefix=NARROW
// RUN: sed -e 's/x64xf32/x257xf16/g' %inputs/causal-softmax.mlir > %t.odd
// RUN: not attn-opt %t.odd -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: not attn-opt %t.alone -p 'nvidia-slice-values{columns=20}' 2>&1 | FileCheck %s --check-prefix=INVALID
// RUN: sed -e 's/return %o, %lse/%c = tensor.cast %o : tensor<?x?x?x576xf16> to tensor<?x?x?x576xf16>\n  return %c, %lse/' %t.wide > %t.inside
// RUN: not attn-opt %t.inside -p 'nvidia-slice-values' 2>&1 | FileCheck %s --check-prefix=INSIDE

// CLUSTER: func.func @attention(%[[Q:[a-z0-9]+]]: tensor<?x?x?x256xf16>, %[[K:[a-z0-9]+]]: tensor<?x?x?x256xf16>, %[[V:[a-z0-9]+]]: tensor<?x?x?x256xf16>) -> (tensor<?x?x?x256xf16>, tensor<?x?x?xf32>)
// CLUSTER-SAME: tile.choices = {ahead = 1 : i64, block_kv = 64 : i64, block_q = 128 : i64, cluster = 2 : i64, emitter = "hopper"}
// CLUSTER: "attn.attention"(%[[Q]], %[[K]], %[[V]])
// CHECK: func.func @attention(%[[Q:[a-z0-9]+]]: tensor<?x?x?x576xf16>, %[[K:[a-z0-9]+]]: tensor<?x?x?x576xf16>, %[[V:[a-z0-9]+]]: tensor<?x?x?x192xf16>) -> (tensor<?x?x?x192xf16>, tensor<?x?x?xf32>)
// CHECK-SAME: tile.choices = {block_kv = 32 : i64, block_q = 64 : i64, launch_columns = 192 : i64, launch_values = 2 : i64}
// CHECK: "attn.attention"(%[[Q]], %[[K]], %[[V]])
// CHECK: (tensor<?x?x?x576xf16>, tensor<?x?x?x576xf16>, tensor<?x?x?x192xf16>) -> (tensor<?x?x?x192xf16>, tensor<?x?x?xf32>)
// MODS: tile.choices = {block_kv = 32 : i64, block_q = 64 : i64, launch_columns = 256 : i64, launch_values = 2 : i64}
// FEW: error: nvidia-slice-values: no kernel is made whose columns 2 thread blocks share
// FIVE: error: nvidia-slice-values: 1 to 4 thread blocks can share columns (cluster), not 5
// SCAN: error: nvidia-slice-values: 2 thread blocks (cluster) share columns where there is one attention
// NARROW-NOT: tile.choices
// ODD: error: v has head dimension 257: more than 256 columns are seen in slices, which take multiples of 8: pad v with zeros
// INVALID: error: nvidia-slice-values: `columns` must be a positive multiple of 8, got 20
// INSIDE: error: nvidia-slice-values: v of 576 columns must come from outside of the kernel, and o leave it
