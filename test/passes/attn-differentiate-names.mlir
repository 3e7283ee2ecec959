// A captured tensor may be called q while the queries are called otherwise: what it is read for is its own tangent.
// RUN: attn-opt %s -p 'attn-differentiate{functions=jvp}' | FileCheck %s
// RUN: attn-run %s -p 'attn-differentiate{functions=fwd+bwd+jvp+bwd2}' --after-each --q-len 5 --kv-len 7 --heads 2 --kv-heads 2 | tail -1 | FileCheck %s --check-prefix=NUMBERS

// NUMBERS: PASS
!t = tensor<?x?x?x8xf32>
func.func @attention(%x: !t loc("queries"), %y: !t loc("q"), %v: !t, %gain: tensor<?xf32> loc("k")) -> !t {
  %o = "attn.attention"(%x, %y, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %g = tensor.extract %gain[%h] : tensor<?xf32>
      %scaled = arith.mulf %score, %g : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
// CHECK: func.func @attention_jvp(%[[Q:[a-z0-9]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[K:[a-z0-9]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[V:[a-z0-9]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[GAIN:[a-z0-9]+]]: tensor<?xf32>{{.*}}, %[[DQ:[a-z0-9_]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[DK:[a-z0-9_]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[DV:[a-z0-9_]+]]: tensor<?x?x?x8xf32>{{.*}}, %[[DGAIN:[a-z0-9_]+]]: tensor<?xf32>
// CHECK-DAG: tensor.extract %[[GAIN]][%
// CHECK-DAG: tensor.extract %[[DGAIN]][%
