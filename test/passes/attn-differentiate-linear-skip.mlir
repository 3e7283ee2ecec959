// What rows of o get of their own rows of v: their gradients' rows get the same of do's, and factors the sums of do v.
// RUN: attn-opt %inputs/linear/skip.mlir -p 'attn-differentiate{functions=bwd only=true},attn-simplify' | FileCheck %s
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/skip.mlir > %t.bf16
// RUN: attn-opt %t.bf16 -p 'attn-differentiate{functions=bwd only=true},attn-simplify' | FileCheck %s --check-prefix=BF16

// The scan makes dv of values times dt: the skip comes with dt.
// CHECK-NOT:     attn.skip
// CHECK:         %[[DV:.*]] = "attn.linear_attention"(%k, %q, %do, %[[DT:[^)]*]]) ({
// CHECK-NOT:     attn.skip
// CHECK:         %[[SHARES:.*]] = "attn.elements"(%do)
// CHECK-DAG:       %[[OF_O:.*]] = tensor.extract %do
// CHECK-DAG:       %[[OF_V:.*]] = tensor.extract %v
// CHECK:           %[[SHARE:.*]] = arith.mulf %[[OF_O]], %[[OF_V]]
// CHECK:           "attn.yield"(%[[SHARE]])
// CHECK:         "attn.scatter"(%[[SHARES]], %[[D:.*]]) ({
// CHECK-NEXT:    ^bb0(%{{.*}}: index, %[[H:.*]]: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:      "attn.yield"(%[[H]])
// CHECK:         "attn.elements"(%v)
// CHECK:           %[[OF_DV:.*]] = tensor.extract %[[DV]]
// CHECK:           %[[TIMES_DT:.*]] = arith.mulf %[[OF_DV]],
// CHECK:           %[[FACTOR:.*]] = tensor.extract %[[D]]
// CHECK:           %[[OF_O:.*]] = tensor.extract %do
// CHECK:           %[[OWN:.*]] = arith.mulf %[[FACTOR]], %[[OF_O]]
// CHECK:           arith.addf %[[TIMES_DT]], %[[OWN]]

// In bf16 it makes that of v itself.
// BF16-NOT:      attn.skip
// BF16:          %[[DV:.*]] = "attn.linear_attention"(%k, %q, %do, {{[^)]*}}) ({
// BF16:            "attn.skip"
// BF16:            "attn.result"
// BF16:          "attn.scatter"
// BF16:          return %{{.*}}, %{{.*}}, %[[DV]],

// RUN: attn-run %inputs/linear/skip.mlir %t.bf16 --q-len 11 -p 'attn-differentiate{interval=4},attn-split-sequences{segment=4},attn-simplify,attn-outline{share-states=true},attn-chunk-rewrite{chunk=2}' | FileCheck %s --check-prefix=NUMBERS
// Without a mod of v, with one that has factors of rows no more, and with a factor that is computed.
// RUN: sed -e '/attn.value/,/}) : () -> ()/d' %inputs/linear/skip.mlir > %t.plain
// RUN: sed -e 's/%y = arith.mulf %x, %dt : f32/%z = arith.mulf %x, %dt : f32\n%y = math.tanh %z : f32/' -e 's/"attn.yield"(%d_h)/%d = math.exp %d_h : f32\n"attn.yield"(%d)/' %inputs/linear/skip.mlir > %t.tanh
// RUN: attn-run %t.plain %t.tanh --q-len 11 -p 'attn-differentiate{crossing=true interval=4},attn-simplify,attn-outline{share-states=true},attn-chunk-rewrite' | FileCheck %s --check-prefix=NUMBERS
// NUMBERS-COUNT-2: PASS
