// Dropout on Hopper: lanes of the consumers make the bits of their warp once its weights are rounded, look at these as without dropout, and make 0 of some
// afterwards. The forward pass comes from passes of the `warp` dialect. In the backward pass each lane makes words for the warp's keys, before the map over pairs.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to cuda - | FileCheck %s --check-prefix=BWD

// PLAN:      dropout = "lanes", emitter = "warp"
// PLAN-SAME: lazy_rescale = 1 : i64

// CHECK:     attn::fewer_registers<32>();
// CHECK-NOT: philox
// CHECK:     attn::more_registers<160>();
// CHECK:     const bool [[SOME:.*]] = attn::any_reaches<0x7400>(
// CHECK:     const attn::Dropout [[OF:.*]] = {(unsigned)([[SEED:.*]]), (unsigned)((unsigned long long)([[SEED]]) >> 32), {{.*}}, (unsigned)(arg5),
// CHECK:     attn::dropout_of_warp<192, 128, 7>([[OF]], {{.*}}, [[BITS:kept_bits - 1024]], [[QUERY:query_of.*]]);
// CHECK-NEXT: }
// CHECK:     attn::drop_own<192>({{.*}}, [[BITS]]);

// BWD:       attention_bwd_2_pairs(
// BWD:       attn::fewer_registers<24>();
// BWD-NOT:     dropout
// BWD:       attn::more_registers<240>();
// BWD:       attn::dropout_of_keys<128, 4>(of, group, shared + [[WORDS:.*]], query_of);
// BWD:       const unsigned kept_here = (unsigned)attn::load_shared_int(shared + [[WORDS]] + 16 * c + lane % 4 * 4)
// BWD:       ((kept_here >> {{.*}}) != 0) ?
!t = tensor<?x?x?x64xf16>

module {
func.func @attention(%q: !t, %k: !t, %v: !t, %seed: tensor<i64>, %offset: tensor<i64>, %drop: index, %scale: f32) -> !t {
  %c1 = arith.constant 1 : index
  %num_heads = tensor.dim %q, %c1 : !t
  %0 = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %eighth = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %eighth : f32
      %1 = tensor.extract %seed[] : tensor<i64>
      %2 = arith.index_cast %1 : i64 to index
      %3 = tensor.extract %offset[] : tensor<i64>
      %4 = arith.index_cast %3 : i64 to index
      %is_kept = "attn.kept"(%2, %4, %drop, %num_heads, %b, %h, %q_idx, %kv_idx) : (index, index, index, index, index, index, index, index) -> i1
      %kept = arith.select %is_kept, %one, %zero : f32
      "attn.yield"(%scaled, %kept) : (f32, f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %kept: f32, %b: index, %h: index, %q_idx: index):
      %1 = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %2 = arith.subf %s, %1 : f32
      %e = math.exp %2 : f32
      %3 = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %4 = arith.divf %e, %3 : f32
      %5 = arith.mulf %4, %kept : f32
      %dropped = arith.mulf %5, %scale : f32
      "attn.yield"(%dropped) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %0 : !t
}
}
