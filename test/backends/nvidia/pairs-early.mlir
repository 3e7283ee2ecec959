// The backward of causal softmax with 128 columns on Hopper: numbers of query rows are read between both products, and half of the exponentials
// stay before the wait for the second one.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' -o %t
// RUN: attn-translate --to cuda %t | FileCheck %s

// CHECK:       __launch_bounds__(384, 1) attention_bwd_2_pairs(
// CHECK:       attn::more_registers<240>();
// CHECK:       attn::wgmma_m64n64k16_ss_f16([[SCORES:product[_0-9]*]],
// CHECK:       attn::wgmma_commit();
// The row values are there; each thread's, for 64 queries.
// CHECK-NEXT:  attn::barrier_wait(barriers + 72 + 8 * stage, parity);
// CHECK:       float2 [[ROWS:of_queries[_0-9]*]][8];
// CHECK:       [[ROWS]][c] = attn::load_shared2(columns + 0 + 32 * c);
// CHECK:       attn::barrier_wait([[DO_FULL:barriers [+] 40 [+] 8 [*] stage]], parity);
// CHECK:       attn::wgmma_m64n64k16_ss_f16([[DP:product[_0-9]*]],

// CHECK:       attn::wgmma_wait<1>();
// CHECK-NEXT:  attn::hold([[SCORES]]);
// CHECK:       for (int c = 0; c < 4; ++c) {
// CHECK-NEXT:    = [[ROWS]][c];
// CHECK:         exp2f(
// ptxas moves nothing over a barrier, even one that has been waited for.
// CHECK:       attn::hold([[SCORES]]);
// CHECK-NEXT:  attn::barrier_wait([[DO_FULL]], parity);
// CHECK-NEXT:  attn::hold([[SCORES]]);
// CHECK:       for (int c = 4; c < 8; ++c) {
// CHECK-NEXT:    = [[ROWS]][c];
// CHECK:         exp2f(
// CHECK:       attn::wgmma_wait<0>();
// CHECK-NEXT:  attn::hold([[DP]]);
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
