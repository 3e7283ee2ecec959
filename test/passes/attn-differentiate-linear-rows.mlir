// In bf16, what factors of rows read has its gradient from products, the sums x_t . dx_t, not from rounded dq, dk and dv.
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/mamba2.mlir > %t.mamba2
// RUN: attn-opt %t.mamba2 -p 'attn-differentiate{functions=bwd only=true},attn-simplify' | FileCheck %s

// dv's sums have dt behind them. Those of dk have as much of it in pairs, as those of dq have, as they can be divided by again; only what is
// of no usual size, 0 say, stands behind them. The decays' gradient leaves out own terms.
// CHECK:         %[[DQ:.*]]:3 = "attn.linear_attention"(%do, %v, %k, {{.*}}, %q) ({
// CHECK-NEXT:      "attn.key"
// CHECK-NOT:       attn.result
// CHECK:           outputs = ["products", "states"]
// CHECK:         %[[DK:.*]]:4 = "attn.linear_attention"(%v, %do, %q, %[[DT:[^,]*]], %k) ({
// CHECK-NEXT:      "attn.query"
// CHECK:           %[[FACTOR:.*]] = tensor.extract %[[DT]]
// CHECK:           %[[USUAL:.*]] = arith.andi
// CHECK:           arith.select %[[USUAL]], %[[FACTOR]], %{{.*}}
// CHECK:           "attn.result"
// CHECK:           %[[FACTOR:.*]] = tensor.extract %[[DT]]
// CHECK:           %[[USUAL:.*]] = arith.andi
// CHECK:           arith.select %[[USUAL]], %{{.*}}, %[[FACTOR]]
// CHECK:           outputs = ["products", "states", "diagonal"]
// CHECK:         %[[DV:.*]] = "attn.linear_attention"(%k, %q, %do, {{[^,]*}}) ({
// CHECK-NEXT:      "attn.result"
// CHECK:           tensor.extract %[[DT]]
// CHECK:         %[[OF_K:.*]] = "attn.elements"(%[[DK]]#1)
// CHECK:           %[[PRODUCT:.*]] = tensor.extract %[[DK]]#1
// CHECK:           %[[FACTOR:.*]] = tensor.extract %[[DT]]
// CHECK:           %[[REST:.*]] = arith.select %{{.*}}, %{{.*}}, %[[FACTOR]]
// CHECK:           arith.mulf %[[PRODUCT]], %[[REST]]
// CHECK:         %[[B:.*]] = "attn.collect"(%[[OF_K]])
// CHECK:         "attn.decay_gradient"(%[[DQ]]#1, %[[B]], %[[DQ]]#2, %[[DK]]#2)
// CHECK:         %[[OF_V:.*]] = "attn.elements"(%[[DK]]#1)
// CHECK:           %[[REST:.*]] = tensor.extract %[[DK]]#1
// CHECK:           %[[OWN:.*]] = tensor.extract %[[DK]]#3
// CHECK:           %[[SUM:.*]] = arith.addf %[[REST]], %[[OWN]]
// CHECK:           %[[FIRST:.*]] = arith.select
// CHECK:           arith.divf %[[SUM]], %[[FIRST]]
// CHECK:         "attn.scatter"(%[[OF_V]], %[[DT]])
// CHECK-NOT:     attn.elements
// CHECK:         return %{{.*}}, %{{.*}}, %[[DV]],

// Numbers that rows of q and k have, of fewer heads than o perhaps. Decays have no gradient here: no states are needed, nor rounded rows.
// RUN: sed -e 's/x16xf32>/x16xbf16>/g' -e 's/x8xf32>/x8xbf16>/g' %inputs/linear/row-factors.mlir > %t.rows
// RUN: attn-opt %t.rows -p 'attn-differentiate{functions=bwd only=true wrt=arg4},attn-simplify' | FileCheck %s --check-prefix=ROWS

// ROWS:         %[[DQ:.*]]:3 = "attn.linear_attention"(%do, %v, %k, %[[G:[^,]*]], %q) ({
// ROWS-NEXT:      "attn.key"
// ROWS:           "attn.value"
// ROWS-NOT:       interval
// ROWS:           outputs = ["products", "diagonal"]
// ROWS:         %[[DK:.*]]:3 = "attn.linear_attention"(%v, %do, %q, %[[G]], %k) ({
// ROWS-NEXT:      "attn.query"
// ROWS:           tensor.extract %[[G]]
// ROWS:           "attn.value"
// ROWS-NOT:       attn.result
// ROWS:           outputs = ["products", "diagonal"]
// ROWS-NOT:     "attn.linear_attention"
// ROWS:         %[[OF_Q:.*]] = "attn.elements"(%[[DQ]]#1)
// ROWS:         %[[WHOLE_Q:.*]] = "attn.collect"(%[[OF_Q]])
// ROWS:         %[[SUM_Q:.*]] = "attn.head_sum"(%[[WHOLE_Q]], %q)
// ROWS:         %[[SCALED:.*]] = "attn.elements"(%[[SUM_Q]])
// ROWS:           %[[X:.*]] = tensor.extract %[[SUM_Q]]
// ROWS:           arith.mulf %[[X]],
// ROWS:         "attn.scatter"(%[[SCALED]], %[[F:[^)]*]])
// ROWS:         %[[OF_K:.*]] = "attn.elements"(%[[DK]]#1)
// ROWS:           %[[REST:.*]] = tensor.extract %[[DK]]#1
// ROWS:           %[[OWN:.*]] = tensor.extract %[[DK]]#2
// ROWS:           %[[SUM:.*]] = arith.addf %[[REST]], %[[OWN]]
// ROWS:           attn.yield"(%[[SUM]])
// ROWS:         %[[WHOLE_K:.*]] = "attn.collect"(%[[OF_K]])
// ROWS:         "attn.head_sum"(%[[WHOLE_K]], %k)
// ROWS:         "attn.scatter"({{.*}}, %[[F]])

// Other types, decays of channels and products without differences stay as they are.
// RUN: sed -e 's/x16xf32>/x16xf16>/g' -e 's/x8xf32>/x8xf16>/g' %inputs/linear/mamba2.mlir | attn-opt -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=ELSE
// RUN: attn-opt %inputs/linear/mamba2.mlir -p 'attn-differentiate{functions=bwd only=true}' | FileCheck %s --check-prefix=ELSE
// RUN: attn-opt %t.mamba2 -p 'attn-differentiate{functions=bwd only=true crossing=true interval=64}' | FileCheck %s --check-prefix=ELSE
// ELSE-NOT:     attn.result
// ELSE-NOT:     "diagonal"
// ELSE:         "attn.decay_gradient"

// Without differences there are no such products: there the gradient that is summed up is not rounded; those of q and k are, as ever.
// RUN: attn-opt %t.mamba2 -p 'attn-differentiate{functions=bwd only=true crossing=true interval=64}' | FileCheck %s --check-prefix=WHOLE
// WHOLE:        "attn.linear_attention"(%v, %do, %q, {{.*}}) ({
// WHOLE:          state = "vk"} : {{.*}} -> (tensor<?x?x?x16xbf16>,
// WHOLE:        %[[DV:.*]] = "attn.linear_attention"(%k, %q, %do, {{.*}}) ({
// WHOLE:          state = "kv"} : {{.*}} -> tensor<?x?x?x8xf32>
// WHOLE:        %[[PARTS:.*]] = "attn.elements"(%v)
// WHOLE:          tensor.extract %[[DV]][{{.*}}] : tensor<?x?x?x8xf32>
// WHOLE:        "attn.collect"(%[[PARTS]]) {{.*}} -> tensor<?x?x?x8xbf16>
