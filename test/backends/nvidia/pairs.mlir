// The backward of softmax on Hopper: a warp loads, one computes what belongs to query rows; two warpgroups multiply. Weights stay in
// registers for the sums over queries; those of dq go through shared memory, and TMA adds their products to memory.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' -o %t
// RUN: sed 's/^\( *func.func private @attention_bwd_2_pairs.*\) {$/\1 attributes {tile.choices = {key_sums = "consumers"}} {/' %t \
// RUN:   | attn-translate --to cuda - | FileCheck %s
// Where nothing else is asked for, a third warpgroup makes dq (pairs-key-sums.mlir).

// CHECK:       __launch_bounds__(384, 1) attention_bwd_2_pairs(
// CHECK:       const __grid_constant__ CUtensorMap [[Q:arg0]]_map_64x128,
// CHECK:       const __grid_constant__ CUtensorMap [[DQ:[a-z]+[0-9]+]]_map_32x64,

// CHECK:       if (warpgroup == 2) {
// CHECK-NEXT:    attn::fewer_registers<24>();
// CHECK-NEXT:    if (warp == 0) {
// CHECK:           attn::store_piece(shared + {{[0-9]+}} + 32 + 16 * (round % 4), piece,
// CHECK:           attn::barrier_wait(barriers + {{[0-9]+}}, round & 1 ^ 1);
// CHECK:           attn::tma_load({{.*}}, &arg1_map_64x128, barriers
// CHECK:           for (int member = 0;
// CHECK:             for (int query0 = max(0, rows.x
// CHECK:               attn::barrier_wait(
// CHECK:               attn::barrier_arrive_expect(
// CHECK-NEXT:          attn::tma_load({{.*}}, &[[Q]]_map_64x128
// CHECK:         else if (warp == 1) {
// CHECK:           const int program = attn::uniform(
// CHECK:           kept[part] =
// CHECK-NEXT:      kept_2[part] =
// CHECK:           attn::barrier_wait(
// CHECK:           attn::store_shared(columns + 0 + 4 * first + 128 * part, kept[part]);
// CHECK-NEXT:      attn::store_shared(columns + 512 + 4 * first + 128 * part, kept_2[part]);
// CHECK:       attn::more_registers<240>();

// The head of the queries is found once, before the steps.
// CHECK:       const int [[HEAD:n_[0-9]+]] = (head * attn::load_shared_int(shared + {{[0-9]+}})) +
// CHECK:       for (int query0_

// Both products start; the exponential needs the first one only.
// CHECK:         attn::wgmma_m64n128k16_ss_f16(product,
// CHECK:         attn::wgmma_commit();
// CHECK:         attn::wgmma_m64n128k16_ss_f16(product_2,
// CHECK:         attn::wgmma_wait<1>();
// CHECK-NEXT:    attn::hold(product);
// CHECK:           = exp2f(
// CHECK:         attn::wgmma_wait<0>();
// CHECK-NEXT:    attn::hold(product_2);

// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[DV:sum[_0-9]*]], {{[a-z_0-9]+}}[0]
// CHECK:         attn::store_matrices(exchange
// CHECK:         attn::bulk_wait_read<0>();
// CHECK-NEXT:    attn::named_sync(1, 256);
// CHECK:         attn::wgmma_m64n64k16_ss_f16_ta_tb(query_sum,
// CHECK:         attn::wgmma_m64n64k16_rs_f16_tb([[DK:sum[_0-9]*]], {{[a-z_0-9]+}}[0]
// CHECK:         attn::wgmma_wait<2>();
// CHECK-NEXT:    attn::warp_arrive(
// CHECK-NEXT:    attn::wgmma_wait<1>();
// CHECK-NEXT:    attn::hold(query_sum);
// CHECK:         attn::store_shared2(
// CHECK:         if (warp == 0) attn::named_sync(3 + warpgroup, 128);
// CHECK-NEXT:    else attn::named_arrive(3 + warpgroup, 128);
// CHECK:         attn::tma_add(&[[DQ]]_map_32x64, {{.*}}, [[HEAD]], batch);
// CHECK:         attn::wgmma_wait<0>();
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
