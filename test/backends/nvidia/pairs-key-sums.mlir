// The backward of softmax with 64 columns on Hopper: two warpgroups make dv and dk and hand dS over, a third one multiplies it with the keys
// and adds dq, a fourth one loads.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | sed '/_pairs(/s/ {$/ attributes {tile.choices = {length = 3072 : i64}} {/' > %t
// RUN: attn-translate --to cuda %t | FileCheck %s

// CHECK:       __launch_bounds__(512, 1) attention_bwd_2_pairs(
// CHECK:       const __grid_constant__ CUtensorMap [[DQ:[a-z]+[0-9]+]]_map_32x64,

// Both copies of dS are free at first; it waits for those of all consumers, and tells each one when it has read them.
// CHECK:       if (warpgroup == 2) {
// CHECK-NEXT:    attn::fewer_registers<88>();
// CHECK-COUNT-4: attn::named_arrive({{1[2-5]}}, 256);
// CHECK:         attn::named_sync(10 + step % 2, 384);
// CHECK:         attn::wgmma_m64n64k16_ss_f16_tb(query_sum,
// CHECK:         attn::wgmma_wait<0>();
// CHECK-NEXT:    attn::hold(query_sum);
// CHECK-NEXT:    attn::named_arrive(12 + step % 2 * 2 + 0, 256);
// CHECK-NEXT:    attn::named_arrive(12 + step % 2 * 2 + 1, 256);
// CHECK-NEXT:    if (threadIdx.x % 128 == 0) attn::bulk_wait_read<1>();
// CHECK:         attn::store_shared2(
// CHECK:         attn::tma_add(&[[DQ]]_map_32x64,
// CHECK:       if (warpgroup == 3) {
// CHECK-NEXT:    attn::fewer_registers<24>();

// Keys and values stay in registers; no product waits for that of another warpgroup.
// CHECK:       attn::more_registers<200>();
// CHECK:         attn::load_matrices(
// CHECK:         attn::wgmma_m64n64k16_rs_f16(product, held[0]
// CHECK:         attn::wgmma_m64n64k16_rs_f16(product_2, held_2[0]
// CHECK:         attn::wgmma_wait<1>();
// CHECK-NEXT:    attn::hold(product);
// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[DV:sum[_0-9]*]], {{[a-z_0-9]+}}[0]
// CHECK:         attn::named_sync(12 + step % 2 * 2 + warpgroup, 256);
// CHECK:         attn::store_matrices_transposed(exchange
// CHECK:         attn::fence_proxy_async();
// CHECK-NEXT:    attn::named_arrive(10 + step % 2, 384);
// CHECK-NEXT:    attn::wgmma_begin();
// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[DK:sum[_0-9]*]], {{[a-z_0-9]+}}[0]
// CHECK-NOT:     attn::tma_add(
// CHECK:       attn::named_sync(12 + warpgroup, 256);
// CHECK-NEXT:  attn::named_sync(14 + warpgroup, 256);
!t = tensor<?x?x?x64xf16>
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
