// Heads too wide for a kernel: products come from memory, a chunk's at a time, and weights go there; the driver is told what to multiply.
// RUN: sed -e 's/x64xf32/x576xf16/g' %inputs/causal-softmax.mlir > %t.wide
// RUN: attn-opt %t.wide -p 'attn-simplify,attn-differentiate{functions=bwd only=true},attn-simplify,gpu-materialize-pairs,canonicalize,cse' > %t.made
// RUN: FileCheck %s --input-file %t.made
// RUN: FileCheck %s --input-file %t.made --check-prefix=TOLD
// RUN: sed -e 's/x64xf32/x256xf16/g' %inputs/causal-softmax.mlir > %t.narrow
// RUN: attn-opt %t.narrow -p 'attn-differentiate{functions=bwd only=true},gpu-materialize-pairs' | FileCheck %s --check-prefix=NARROW
// RUN: attn-opt %t.narrow -p 'attn-differentiate{functions=bwd only=true},gpu-materialize-pairs{columns=128}' | FileCheck %s --check-prefix=MOVED
// RUN: attn-opt %t.wide -p 'attn-simplify,attn-differentiate{functions=bwd only=true},attn-simplify,nvidia-split-pairs,gpu-materialize-pairs' | FileCheck %s --check-prefix=WHOLE
// RUN: sed -e 's/x[0-9]*xf32/x576xf32/g' -e '/"attn.query"/,/() -> ()/d' %inputs/packed-causal.mlir > %t.packed
// RUN: attn-opt %t.packed -p 'attn-simplify,attn-differentiate{functions=bwd only=true},attn-simplify,gpu-materialize-pairs' | FileCheck %s --check-prefix=PACKED

// CHECK:     func.func @attention_bwd(
// CHECK-NOT: x576xf16>, %q
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %[[DP:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %[[ROWS:[a-z0-9]+]]: index, %[[I:[a-z0-9]+]]: index, %[[J:[a-z0-9]+]]: index, %[[H:[a-z0-9]+]]: index, %[[B:[a-z0-9]+]]: index
// CHECK-SAME: %[[KEYS:[a-z0-9]+]]: index) -> (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>)
// CHECK:     "attn.elements"(%[[S]])
// CHECK:       ^bb0(%[[CB:.*]]: index, %[[CH:.*]]: index, %[[CJ:.*]]: index, %[[CE:.*]]: index):
// CHECK-NEXT:    %[[MOST:.*]] = arith.minsi %[[ROWS]]
// CHECK-NEXT:    %[[SOME:.*]] = arith.maxsi %[[MOST]]
// CHECK-NEXT:    %[[HEAD:.*]] = arith.divui %[[CH]], %[[SOME]]
// CHECK-NEXT:    %[[EIGHTS:.*]] = arith.muli %[[CJ]], %c8
// CHECK-NEXT:    %[[COLUMN:.*]] = arith.addi %[[EIGHTS]], %[[CE]]
// CHECK-NEXT:    %[[FIRST:.*]] = arith.muli %[[HEAD]], %[[SOME]]
// CHECK-NEXT:    %[[ROW:.*]] = arith.subi %[[CH]], %[[FIRST]]
// CHECK-NEXT:    %[[KEY:.*]] = arith.addi %[[J]], %[[COLUMN]]
// CHECK:         %[[LAST:.*]] = arith.minsi %[[KEY]]
// CHECK-DAG:     %[[EXISTS:.*]] = arith.cmpi slt, %[[KEY]], %[[KEYS]]
// CHECK-DAG:     %[[QUERY:.*]] = arith.addi %[[I]], %[[ROW]]
// CHECK-DAG:     tensor.extract %[[S]][%[[CB]], %[[CH]], %[[CJ]], %[[CE]]]
// CHECK-DAG:     tensor.extract %[[DP]][%[[CB]], %[[CH]], %[[CJ]], %[[CE]]]
// CHECK:         %[[KEPT:.*]] = arith.cmpi sge, %[[QUERY]], %[[LAST]]
// CHECK-NEXT:    %[[BOTH:.*]] = arith.andi %[[EXISTS]], %[[KEPT]]
// CHECK-NEXT:    %[[P:.*]] = arith.select %[[BOTH]]
// CHECK-NEXT:    %[[DS:.*]] = arith.select %[[BOTH]]
// CHECK-NEXT:    "attn.yield"(%[[P]], %[[DS]])
// CHECK-COUNT-2: "attn.collect"(%{{.*}}) {weight = {{[01]}} : i64} : (none) -> tensor<?x?x?x8xf16>
// CHECK-NOT: attn.pairs

// q k^T and do v^T; dk, dq and dv, of two weights; keys before the end of the queries.
// TOLD: launch_pairs = "{\22products\22:[[0,1],[8,2]]
// TOLD-SAME: {\22kind\22:\22key\22,\22terms\22:[0]
// TOLD-SAME: {\22kind\22:\22query\22,\22terms\22:[1]
// TOLD-SAME: {\22kind\22:\22key\22,\22terms\22:[8]
// TOLD-SAME: \22scatters\22:[],\22keys\22:{\22steps\22:[
// NARROW-NOT: launch_pairs
// NARROW: "attn.pairs"
// MOVED: launch_pairs
// WHOLE-NOT: attn.pairs
// Batch entries are sequences, of as many rows and keys as the longest.
// PACKED: func.func @attention_bwd(
// PACKED-SAME: %[[ORDER:[a-z0-9]+]]: tensor<?xi32>, %[[N:[a-z0-9]+]]: index, %[[PI:[a-z0-9]+]]: index, %[[PJ:[a-z0-9]+]]: index, %{{[a-z0-9]+}}: index, %[[PB:[a-z0-9]+]]: index
// PACKED-SAME: launch_pairs = {{.*}}\22op\22:\22element\22{{.*}}\22sequences\22:[3,4,5,6]
// PACKED:   %[[ENTRY:.*]] = arith.addi %[[PB]]
// PACKED:   %[[NUMBER:.*]] = tensor.extract %[[ORDER]][%[[ENTRY]]]
// PACKED:   %[[SEQUENCE:.*]] = arith.index_cast %[[NUMBER]]
// PACKED:   tensor.extract %{{.*}}[%[[SEQUENCE]]]
