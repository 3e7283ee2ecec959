// What a delta rule in 16 bits writes, and states on the way into segments of 512 positions, are further results of the forward function: its o
// comes from them, by a scan of segments that erases nothing. The backward function takes them, and makes no scan for them.
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{apart=true keep=true}' | FileCheck %s

// CHECK-LABEL: func.func @attention_fwd(
// CHECK:         %[[U:.*]]:3 = "attn.linear_attention"(%q, %k, %v, %[[DECAY:.*]], %[[INITIAL:.*]])
// CHECK:           "attn.erase"(%k)
// CHECK:         }) {{{.*}}entering{{.*}}interval = 512{{.*}}output = "values", outputs = ["final_state", "states"]
// CHECK:         %[[O:.*]] = "attn.linear_attention"(%q, %k, %[[U]]#0, %[[DECAY]], %[[U]]#2)
// CHECK:           "attn.query"
// CHECK-NOT:       "attn.erase"
// CHECK:         }) {{{.*}}segment = 512 : i64, starts
// CHECK:         return %[[O]], %[[U]]#1, %[[U]]#0, %[[U]]#2

// CHECK-LABEL: func.func @attention_bwd(
// CHECK-SAME:    %kept_values: tensor<?x?x?x64xbf16>, %kept_states: tensor<?x?x?x64xf32>, %do: {{.*}}, %d_final_state: tensor<?x?x64x64xf32>
// CHECK-NOT:     "attn.linear_attention"(%q, %k, %v,
// CHECK:         "attn.linear_attention"(%do, %kept_values, %k, {{.*}}, %kept_states,
// CHECK:         }) {{{.*}}segment = 512 : i64, starts

// They agree with differences of the function, in chunks, too.
// RUN: attn-run %inputs/linear/gated-delta-half.mlir --q-len 7 -p 'attn-differentiate{apart=true keep=true interval=4},attn-simplify,attn-chunk-rewrite{chunk=4}' | FileCheck %s --check-prefix=SAME
// SAME: saved 1
// SAME: PASS

// With sequences of their own lengths, in f32, and where not asked for, nothing is kept.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-differentiate{apart=true keep=true}' | FileCheck %s --check-prefix=SINGLE
// RUN: attn-opt %inputs/linear/gated-delta-half.mlir -p 'attn-differentiate{apart=true}' | FileCheck %s --check-prefix=SINGLE
// SINGLE-NOT: kept_values
