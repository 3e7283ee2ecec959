// The backward of causal softmax with 128 columns on Hopper: products take the first 16 columns of keys and of values from registers that are
// left, so that they read less of shared memory, which is what such steps wait for.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' -o %t
// RUN: attn-opt %t -p nvidia-kernel | FileCheck %s --check-prefix=CHOSEN
// RUN: attn-translate --to cuda %t | FileCheck %s

// CHOSEN-LABEL: func.func @attention_bwd_2_pairs(
// CHOSEN-SAME:    held = 1 : i64

// CHECK:       __launch_bounds__(384, 1) attention_bwd_2_pairs(
// CHECK:       attn::more_registers<240>();
// This program's keys have landed, and are read once.
// CHECK:       attn::barrier_wait(barriers, round & 1);
// CHECK-NEXT:  uint32_t held[4];
// CHECK:         attn::load_matrices(shared + 0 + attn::swizzle_128(place + 32 * (k)), four);
// CHECK:           held[4 * k + i] = four[i];
// CHECK:       uint32_t held_2[4];
// CHECK:         attn::load_matrices(shared + 32768 + attn::swizzle_128(place + 32 * (k)), four);
// CHECK:       for (int query0
// CHECK:         attn::wgmma_m64n64k16_rs_f16([[SCORES:product[_0-9]*]], held[0], held[1], held[2], held[3], b, 0);
// CHECK-NEXT:    attn::wgmma_m64n64k16_ss_f16([[SCORES]], attn::advance(a, 32), attn::advance(b, 32), 1);
// CHECK:         attn::wgmma_m64n64k16_rs_f16([[DP:product[_0-9]*]], held_2[0], held_2[1], held_2[2], held_2[3], b, 0);
// CHECK-NEXT:    attn::wgmma_m64n64k16_ss_f16([[DP]], attn::advance(a, 32), attn::advance(b, 32), 1);
!t = tensor<?x?x?x128xf16>
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
