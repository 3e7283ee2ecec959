// GPUs other than Hopper have no kernels of slices of v: every attention of wide heads has its pairs in memory there.
// RUN: sed -e 's/x64xf32/x576xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: attn-opt %t.wide -p 'nvidia-materialize-rows' | FileCheck %s --check-prefix=HOPPER
// RUN: sed -e 's/) {$/) attributes {tile.choices = {arch = "sm_80"}} {/' %t.wide > %t.ampere
// RUN: attn-opt %t.ampere -p 'attn-simplify,nvidia-materialize-rows,canonicalize,cse' | FileCheck %s
// RUN: sed -e 's/x576xf16/x256xf16/g' %t.ampere > %t.narrow
// RUN: attn-opt %t.narrow -p 'nvidia-materialize-rows' | FileCheck %s --check-prefix=HOPPER
// RUN: sed -e 's/"attn.score"/"attn.value"() ({\n    ^bb0(%x: f32, %b: index, %h: index, %j: index, %d: index):\n      "attn.yield"(%x) : (f32) -> ()\n    }) : () -> ()\n    "attn.score"/' %t.ampere > %t.changed
// RUN: not attn-opt %t.changed -p 'nvidia-materialize-rows' 2>&1 | FileCheck %s --check-prefix=CHANGED

// CHECK: func.func @attention_level0(
// CHECK: func.func @attention_level1(
// CHECK-SAME: tile.choices = {arch = "sm_80"}
// CHECK: func.func @attention_weights(
// CHECK: func.func @attention(
// CHECK-SAME: launch_pairs = "{\22products\22:[[0,1]]
// CHECK-NOT: attn.attention
// HOPPER-NOT: launch_pairs
// HOPPER: "attn.attention"
// CHANGED: error: nvidia-materialize-rows: kernels over pairs in memory, for heads of more than 256 columns, are made not with value_mod: change v before the call
