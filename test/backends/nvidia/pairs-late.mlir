// The backward of softmax with 128 columns on Hopper: each warpgroup writes dS and multiplies that of the step before with the keys, so that
// they do not meet in the middle of a step.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' -o %t
// RUN: attn-translate --to cuda %t | FileCheck %s

// CHECK:       __launch_bounds__(384, 1) attention_bwd_2_pairs(
// CHECK:       attn::more_registers<240>();
// Both copies of dS are free at first.
// CHECK:       attn::named_arrive(10 - 4 * (0) + 1 - warpgroup, 256);
// CHECK-NEXT:  attn::named_arrive(10 - 4 * (1) + 1 - warpgroup, 256);
// CHECK:       int late_row = -1;
// CHECK-NEXT:  int late_head = 0;

// dV from registers; dS into this step's copy; dQ from the copy of the step before; dK.
// CHECK:       attn::wgmma_m64n128k16_rs_f16_tb([[DV:sum[_0-9]*]],
// CHECK:       attn::named_sync(10 - 4 * (step % 2) + warpgroup, 256);
// CHECK:       attn::store_matrices_transposed(exchange
// CHECK:       attn::fence_proxy_async();
// CHECK-NEXT:  attn::named_arrive(12 + step % 2 * 2 + 1 - warpgroup, 256);
// CHECK:       if (late_row >= 0) attn::named_sync(12 + (step + 1) % 2 * 2 + warpgroup, 256);
// CHECK-NEXT:  attn::wgmma_begin();
// CHECK:       attn::k_major(shared + {{[0-9]+}} + 20480 * ((step + 1) % 2));
// CHECK-NEXT:  attn::wgmma_m64n80k16_ss_f16_ta(product,
// CHECK:       attn::wgmma_m64n128k16_rs_f16_tb([[DK:sum[_0-9]*]],
// CHECK:       if (late_row >= 0) {
// CHECK-NEXT:    attn::named_arrive(10 - 4 * ((step + 1) % 2) + 1 - warpgroup, 256);
// CHECK:         attn::tma_add(&{{.*}}, late_row + 64 * 0, late_head,
// CHECK:       late_row = query0{{[_0-9]*}};
// CHECK-NEXT:  late_head =
// CHECK-NEXT:  ++step;

// What the last step has left.
// CHECK:         {{^ *}}attn::named_sync(12 + (step + 1) % 2 * 2 + warpgroup, 256);
// CHECK-NEXT:    attn::wgmma_begin();
// CHECK:         attn::wgmma_m64n80k16_ss_f16_ta(query_sum
// CHECK:         attn::wgmma_wait<0>();
// CHECK:       attn::named_sync(10 - 4 * (0) + warpgroup, 256);
// CHECK-NEXT:  attn::named_sync(10 - 4 * (1) + warpgroup, 256);
!t = tensor<?x?x?x128xf16>
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
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
