// Compiled derivatives agree with the reference; a captured tensor that is read at two places gets both gradients.
// REQUIRES: torch
// RUN: attn-run %s --device cpu --function attention_bwd --q-len 7 --kv-len 9 | FileCheck %s
// RUN: attn-run %s --device cpu --function attention_jvp --wrt q+v --q-len 7 --kv-len 9 | FileCheck %s --check-prefix=JVP

// RUN: attn-run %inputs/linear/simple-gla.mlir --device cpu --function attention --q-len 40 | FileCheck %s --check-prefix=LINEAR

// LINEAR:     o: abs {{.*}}  final_state: abs
// LINEAR-NEXT: PASS
// CHECK:      @attention_bwd B=2 Hq=4 Hkv=2 Sq=7 Skv=9  by differences: dq: abs {{.*}}  dk: abs {{.*}}  dv: abs {{.*}}  dtable: abs
// CHECK-NEXT: @attention_bwd B=2 Hq=4 Hkv=2 Sq=7 Skv=9  dq: abs {{.*}}  dk: abs {{.*}}  dv: abs {{.*}}  dtable: abs {{[1-9].*}}e-0
// CHECK-NEXT: PASS
// JVP:        @attention_jvp B=2 Hq=4 Hkv=2 Sq=7 Skv=9  o: abs {{.*}}  o_dot: abs {{[1-9].*}}e-0
// JVP-NEXT:   PASS
!t = tensor<?x?x?x8xf32>
func.func @attention(%q: !t, %k: !t, %v: !t, %table: tensor<?xf32> loc("table")) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      %u = tensor.extract %table[%i] : tensor<?xf32>
      %w = tensor.extract %table[%j] : tensor<?xf32>
      %y = arith.addf %x, %u : f32
      %z = arith.mulf %y, %w : f32
      "attn.yield"(%z) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %p = math.tanh %s : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
