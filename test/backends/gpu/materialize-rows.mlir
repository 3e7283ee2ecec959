// A tangent of heads too wide for a kernel: products come from memory, and kernels see them one after another.
// RUN: sed -e 's/x64xf32/x576xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: attn-opt %t.wide -p 'attn-simplify,attn-differentiate{functions=jvp only=true},attn-simplify,gpu-materialize-rows,canonicalize,cse' > %t.made
// RUN: FileCheck %s --input-file %t.made
// RUN: FileCheck %s --input-file %t.made --check-prefix=TOLD
// RUN: sed -e 's/x64xf32/x256xf16/g' %inputs/causal-softmax.mlir > %t.narrow
// RUN: attn-opt %t.narrow -p 'attn-differentiate{functions=jvp only=true},gpu-materialize-rows' | FileCheck %s --check-prefix=NARROW
// RUN: attn-opt %t.narrow -p 'attn-differentiate{functions=jvp only=true},gpu-materialize-rows{columns=128}' | FileCheck %s --check-prefix=MOVED
// RUN: attn-opt %t.wide -p 'gpu-materialize-rows' | FileCheck %s --check-prefix=NARROW
// RUN: sed -e 's/x[0-9]*xf32/x576xf32/g' -e '/"attn.query"/,/() -> ()/d' %inputs/packed-causal.mlir > %t.packed
// RUN: attn-opt %t.packed -p 'attn-differentiate{functions=jvp only=true},gpu-materialize-rows' 2>&1 | FileCheck %s --check-prefix=PACKED

// The maximum, of q k^T alone, and a count of keys.
// CHECK:     func.func @attention_jvp_level0(%[[S:[a-z0-9]+]]: tensor<?x?x?x8xf32>
// CHECK:       %[[SCORE:.*]] = tensor.extract %[[S]]
// CHECK:       %[[SCALED:.*]] = arith.mulf %[[SCORE]]
// CHECK:       %[[TERM:.*]] = arith.select %[[PRESENT:.*]], %[[SCALED]], %{{.*}} : f32
// CHECK-NEXT:  %[[ONE:.*]] = arith.select %[[PRESENT]]
// CHECK-NEXT:  "attn.yield"(%[[TERM]], %[[ONE]])
// CHECK-COUNT-2: "attn.collect"(%{{.*}}) {weight = {{[01]}} : i64} : (none) -> tensor<?x?x?x8xf32>

// The sums of exponentials, and of these times tangents of scores: the maximum is read.
// CHECK:     func.func @attention_jvp_level1(%[[MAX:[a-z0-9]+]]: tensor<?x?x?xf32>
// CHECK:       tensor.extract %[[MAX]][%[[B:.*]], %[[H:.*]], %[[I:.*]]]
// CHECK:       math.exp
// CHECK-COUNT-2: "attn.collect"(%{{.*}}) {weight = {{[01]}} : i64} : (none) -> tensor<?x?x?x8xf32>

// Weights of v and of its tangent, each once.
// CHECK:     func.func @attention_jvp_weights(
// CHECK:       arith.divf
// CHECK-COUNT-2: "attn.collect"(%{{.*}}) {weight = {{[01]}} : i64} : (none) -> tensor<?x?x?x8xf16>
// CHECK-NOT:   attn.collect

// lse and its tangent, of rows that have keys.
// CHECK:     func.func @attention_jvp(
// CHECK:       math.log
// CHECK:       %[[SOME:.*]] = arith.cmpf ogt
// CHECK-COUNT-2: arith.select %[[SOME]]
// CHECK-NOT: attn.attention

// TOLD: launch_pairs = "{\22products\22:[[0,1],[3,1],[0,4]]
// TOLD-SAME: \22stages\22:[{\22kernel\22:\22attention_jvp_level0\22,\22kept\22:[],\22reductions\22:[\22max\22,\22sum\22],\22weights\22:0}
// TOLD-SAME: {\22kernel\22:\22attention_jvp_level1\22,\22kept\22:[6],\22reductions\22:[\22sum\22,\22sum\22]
// TOLD-SAME: {\22kernel\22:\22attention_jvp_weights\22,{{.*}}\22weights\22:2}
// NARROW-NOT: launch_pairs
// NARROW: "attn.attention"
// MOVED: launch_pairs
// Of packed sequences, values of rows are where packed rows are, and rows that see no key are known by their count.
// PACKED: func.func @attention_jvp_level1(
// PACKED:   %[[BEGIN:.*]] = tensor.extract %{{.*}} : tensor<?xi32>
// PACKED: func.func @attention_jvp(
// PACKED:   "attn.elements"
// PACKED:     "attn.sequences"(%[[BEGINS:.*]], %{{.*}}) {of = "query"}
// PACKED:     tensor.extract %[[BEGINS]]
