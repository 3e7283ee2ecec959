// Kernels over rows for Hopper: the schedule, and what is printed for each role.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: attn-run %s -p nvidia-kernel

!t = tensor<?x?x?x128xf16>

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    tile.schedule = {arch = "sm_90a", consumer_registers = 232 : i64, emitter = "hopper", flow = "flat",
// PLAN-SAME:    group = 32 : i64, lazy_rescale = 1 : i64, order = "dynamic",
// PLAN-SAME:    pin = 0 : i64, ping_pong = 1 : i64, producer_registers = 40 : i64

// CHECK-LABEL: __global__ void __launch_bounds__(384, 1) attention(
// CHECK-NEXT:    const __grid_constant__ CUtensorMap q_map_64x128,
// CHECK:         int *__restrict__ counter,

// The producer loads queries, asks for the next program, then loads keys and values block by block; after three of them the next queries.
// CHECK:         attn::fewer_registers<40>();
// CHECK:         const auto ahead = [&](uint32_t round) {
// CHECK:         attn::tma_load(shared + kQ{{.*}}&q_map_64x128
// CHECK:         ahead(0);
// CHECK:         atomicAdd(counter, 1)
// CHECK:         const auto send = [&](int kv, int count_and_kind) {
// CHECK:         attn::tma_load(shared + kK{{.*}}&k_map_64x128
// CHECK:         attn::tma_load(shared + kV{{.*}}&v_map_64x128
// CHECK:         if (++sent == 3) follow();

// The consumers: the scores of a block are started, then the sums of the one before; weights are computed while these are in flight.
// CHECK:         attn::more_registers<232>();
// CHECK:         // The first block: nothing is in flight yet.
// CHECK:         for (;; ++iteration) {
// CHECK:         load_queries();
// CHECK:         attn::wgmma_m64n128k16_rs_f16(s, queries[0]
// CHECK:         attn::wgmma_m64n128k16_rs_f16_tb(o{{.*}}, packed[0]
// CHECK:         attn::wgmma_wait<1>();
// CHECK:         const bool exact = last || kind & 65536;
// CHECK:         if (exact) {
// CHECK-NOT:     inside
// CHECK:         [[BOUND:bound[_0-9]*]][h] = min({{.*}} - kv, count - 1) - column;
// CHECK:         = (8 * c + e <= [[BOUND]][h]) ?
// CHECK:         attn::largest_in_rows(s_

// Whole blocks keep the old maxima: no search, no factor. A warp whose weights get too large makes its scores again.
// CHECK:         else {
// CHECK-NOT:     largest_in_rows
// CHECK:         attn::wgmma_wait<0>();
// CHECK:         if (attn::any_reaches<0x7400>(packed)) {
// CHECK:         attn::scores_of_warp<128, false>(s,
// CHECK:         attn::largest_in_rows(s, [[TOP:.*]]);
// CHECK:         attn::rescale(
// CHECK:         attn::warp_arrive(shared + kK{{.*}}Free
// CHECK:         attn::tma_store(&o_map_64x64
func.func @attention(%q: !t, %k: !t, %v: !t) -> (!t, tensor<?x?x?xf32>) attributes {tile.choices = {emitter = "hopper"}} {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
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
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (!t, !t, !t) -> (!t, tensor<?x?x?xf32>)
  return %o, %lse : !t, tensor<?x?x?xf32>
}
