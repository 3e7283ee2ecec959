// Packed sequences: a program takes an item of the list of work, whose last row tells how many there are, in the order of the list.
// RUN: attn-opt %s -p 'attn-recover-rows,attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to tilelang - | FileCheck %s
// RUN: attn-opt %s -p 'attn-recover-rows,attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to tilelang - | FileCheck %s --check-prefix=FORWARD

// CHECK:        def attention_bwd_2_pairs(
// CHECK:            with T.Kernel(work_size0 - 1, {{[a-z0-9_]+}}_size1, 1, threads={{[0-9]+}}) as (block, head, batch):
// CHECK:                init=work[block, 0])
// CHECK:                for kv in T.serial(work[block, 1], {{.*}}):

// FORWARD:      def attention(
// FORWARD:          with T.Kernel(work_size0 - 1, {{[a-z0-9_]+}}_size1, 1, threads={{[0-9]+}}) as (block, head, batch):
// FORWARD-NOT:      T.ceildiv(
// FORWARD:          init=work[block, 0])
!t = tensor<?x?x?x64xf16>
!i = tensor<?xi32>

func.func @attention(%q: !t, %k: !t, %v: !t, %q_begins: !i, %q_lengths: !i, %k_begins: !i, %k_lengths: !i) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.sequences"(%q_begins, %q_lengths) {of = "query"} : (!i, !i) -> ()
    "attn.sequences"(%k_begins, %k_lengths) {of = "key"} : (!i, !i) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %max = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %x = arith.subf %s, %max : f32
      %e = math.exp %x : f32
      %sum = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %sum : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
