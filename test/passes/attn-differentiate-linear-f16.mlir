// Over f16 a small scale of q stays out of the states of dv's scan, where they end as the gradient of the initial state: k has it instead.
// RUN: sed -e 's/x?x16xf32>/x?x16xf16>/g' -e 's/x?x8xf32>/x?x8xf16>/g' %inputs/linear/simple-gla.mlir > %t.mlir
// RUN: attn-opt %t.mlir -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s
// RUN: attn-opt %t.mlir -p 'attn-differentiate{functions=bwd only=true crossing=true}' | FileCheck %s --check-prefix=USUAL
// RUN: attn-opt %t.mlir -p 'attn-differentiate{functions=bwd only=true wrt=q+k+v}' | FileCheck %s --check-prefix=USUAL
// RUN: sed -e 's/0.25 :/0.0078125 :/' %t.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=USUAL
// RUN: sed -e 's/"none"/"key"/' -e 's/<?x?x?xf32>/<?x?x?x16xf32>/g' %t.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=CHANNELS
// RUN: sed -e '/func.func/s/x16x8xf32>)/x16x8xf32>, %%scale: f32)/' -e '/%%scale = arith.constant/d' %t.mlir > %t-scalar.mlir
// RUN: attn-opt %t-scalar.mlir -p 'attn-differentiate{functions=bwd only=true wrt=arg4}' | FileCheck %s --check-prefix=SCALAR
// RUN: attn-run %t-scalar.mlir --q-len 9 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME
// RUN: sed -e 's/"attn.query"/"attn.key"() ({ ^bb0(%%x: f32, %%b: index, %%h: index, %%t: index, %%d: index): %%i = arith.index_cast %%t : index to i64 %%f = arith.sitofp %%i : i64 to f32 %%y = arith.mulf %%x, %%f : f32 "attn.yield"(%%y) : (f32) -> () }) : () -> () &/' %t.mlir > %t-rows.mlir
// RUN: attn-opt %t-rows.mlir -p 'attn-differentiate{functions=bwd only=true wrt=v+arg4}' | FileCheck %s --check-prefix=ROWS
// RUN: attn-opt %t-rows.mlir -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=TENSOR
// RUN: attn-run %t-rows.mlir --q-len 9 -p 'attn-differentiate,attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME

// Factors of rows of k are multiplied by it.
// ROWS:          "attn.linear_attention"(%k, %q, %do, {{.*}}) ({
// ROWS-NEXT:       "attn.query"
// ROWS:              %[[ROW:.*]] = arith.sitofp
// ROWS-NEXT:         %[[K:.*]] = arith.mulf %{{.*}}, %[[ROW]]
// ROWS:              arith.constant 2.500000e-01 : f32
// ROWS-NEXT:         arith.mulf %[[K]],
// ROWS-NOT:        "attn.key"
// SAME: PASS

// Not where decays have a gradient, which is made of products of both scans: k is a tensor of its own there.
// TENSOR:        "attn.elements"(%k)
// TENSOR:        %[[K:.*]] = "attn.collect"
// TENSOR:        "attn.linear_attention"(%v, %do, %q, {{.*}}, %d_final_state, %[[K]])
// TENSOR:        "attn.linear_attention"(%[[K]], %q, %do, {{.*}}) ({
// TENSOR-NEXT:     "attn.query"
// TENSOR-NEXT:     ^bb0
// TENSOR-NEXT:       arith.constant 2.500000e-01 : f32

// CHECK:         "attn.linear_attention"(%v, %do, %q, {{.*}}, %d_final_state, %k) ({
// CHECK-NEXT:      "attn.key"
// CHECK:         %[[ELEMENTS:.*]] = "attn.elements"(%d_final_state)
// CHECK:           arith.constant 4.000000e+00 : f32
// CHECK:         %[[LAST:.*]] = "attn.collect"(%[[ELEMENTS]])
// CHECK:         %[[DV:.*]]:2 = "attn.linear_attention"(%k, %q, %do, {{.*}}, %[[LAST]]) ({
// CHECK-NEXT:      "attn.query"
// CHECK:             arith.constant 2.500000e-01 : f32
// CHECK-NOT:       "attn.key"
// CHECK:         %[[ELEMENTS:.*]] = "attn.elements"(%[[DV]]#1)
// CHECK:           arith.constant 2.500000e-01 : f32
// CHECK:         %[[OF_INITIAL:.*]] = "attn.collect"(%[[ELEMENTS]])
// CHECK:         return {{.*}}, %[[OF_INITIAL]] :

// As it is where states are shared with dk's scan, where nothing asks for that gradient, and where the scale would make states too large.
// USUAL-NOT:     attn.elements
// USUAL:         "attn.linear_attention"(%k, %q, %do, {{.*}}, %d_final_state) ({
// USUAL-NEXT:      "attn.key"
// USUAL-NOT:     attn.elements

// Of a scalar from outside that is decided when it is known; q keeps what k must not have.
// SCALAR:        @attention_bwd({{.*}}, %[[SCALE:[^:]*]]: f32,
// SCALAR:        %[[SIZE:.*]] = math.absf %[[SCALE]]
// SCALAR:        %[[LOW:.*]] = arith.cmpf oge, %[[SIZE]],
// SCALAR-NEXT:   %[[HIGH:.*]] = arith.cmpf olt, %[[SIZE]],
// SCALAR-NEXT:   %[[SMALL:.*]] = arith.andi %[[LOW]], %[[HIGH]]
// SCALAR-NEXT:   %[[OF_K:.*]] = arith.select %[[SMALL]], %[[SCALE]], %[[ONE:.*]] :
// SCALAR-NEXT:   %[[OF_Q:.*]] = arith.select %[[SMALL]], %[[ONE]], %[[SCALE]] :
// SCALAR-NEXT:   %[[INVERSE:.*]] = arith.divf %[[ONE]], %[[OF_K]]
// SCALAR:          arith.mulf %{{.*}}, %[[INVERSE]]
// SCALAR:        "attn.linear_attention"(%k, %q, %do, {{.*}}) ({
// SCALAR-NEXT:     "attn.query"
// SCALAR:            arith.mulf %{{.*}}, %[[OF_K]]
// SCALAR:          "attn.key"
// SCALAR:            arith.mulf %{{.*}}, %[[OF_Q]]
// SCALAR:          arith.mulf %{{.*}}, %[[OF_K]]
// SCALAR:        return

// Where channels have decays it is k itself that is scaled.
// CHANNELS:      "attn.elements"(%k)
// CHANNELS:        arith.constant 2.500000e-01 : f32
// CHANNELS:      %[[K:.*]] = "attn.collect"
// CHANNELS:      %[[LAST:.*]] = "attn.collect"
// CHANNELS:      "attn.linear_attention"(%[[K]], %q, %do, {{.*}}, %[[LAST]]) ({
// CHANNELS-NEXT: ^bb0:
// CHANNELS-NEXT: }) {channels = "key", direction = "backward"
