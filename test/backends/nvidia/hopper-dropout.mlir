// Dropout on Hopper with `dropout = "ahead"`: warps of the producer that load nothing make the bits of a block of keys ahead. The consumers look at their packed weights
// as without dropout, and make 0 of them afterwards. In the backward pass the bits travel with the values of query rows.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to cuda - | FileCheck %s --check-prefix=BWD

// PLAN:      dropout = "ahead", emitter = "hopper", flow = "flat"
// PLAN-SAME: lazy_rescale = 1 : i64, makers = 3 : i64

// CHECK:     attn::barrier_init(shared + kToldFull, 1);
// CHECK:     attn::barrier_init(shared + kBitsFull, 3 * attn::kWarpArrivals);
// CHECK:     attn::barrier_init(shared + kBitsFree, 12 * attn::kWarpArrivals);

// The warp that loads tells where the block is, once the consumers have read what was in the stage.
// CHECK:     const auto send = [&](int kv, int count_and_kind) {
// CHECK:       attn::tma_load({{.*}}, &k_map_64x128
// CHECK:       attn::barrier_wait(shared + kBitsFree + iteration % 4 * 8, (iteration / 4 & 1) ^ 1);
// CHECK-NEXT:  if (lane == 0) {
// CHECK-NEXT:    attn::store_shared_int4(shared + kTold + iteration % 4 * 16, kv, block, head, batch);
// CHECK-NEXT:    attn::barrier_arrive(shared + kToldFull + iteration % 4 * 8);
// CHECK:       attn::tma_load({{.*}}, &v_map_64x128
// CHECK:     attn::store_shared_int4(shared + kTold + iteration % 4 * 16, 0, -1, 0, 0);

// CHECK:     else {
// CHECK:       for (uint32_t iteration = 0;; ++iteration) {
// CHECK-NEXT:    attn::barrier_wait(shared + kToldFull + iteration % 4 * 8, iteration / 4 & 1);
// CHECK:         if (block < 0) break;
// CHECK:         attn::dropout_block<192, 128, 3, 2, false>(of, attn::warp_index() - 13,
// CHECK-NEXT:    __syncwarp();
// CHECK-NEXT:    attn::warp_arrive(shared + kBitsFull + iteration % 4 * 8, lane == 0);

// CHECK:     attn::more_registers<160>();
// CHECK:     for (;; ++iteration) {
// CHECK-NOT:   philox
// CHECK:       attn::any_reaches<0x7400>(packed)
// CHECK:       attn::barrier_wait(shared + kBitsFull + iteration % 4 * 8, iteration / 4 & 1);
// CHECK-NEXT:  attn::drop<192>(packed, shared + kBits + iteration % 4 * 6144, shared + kBitsFree + iteration % 4 * 8);

// BWD:       attention_bwd_2_pairs(
// BWD:       attn::fewer_registers<40>();
// BWD:       else if (warp == 1) {
// BWD-NOT:     dropout_block
// BWD:       else {
// BWD:         attn::barrier_wait(
// BWD:         attn::dropout_block<128, 128, 2, 2, true>(of, warp - 2,
// BWD-NEXT:  }
// BWD-NEXT:  attn::barrier_arrive(
// BWD:       attn::more_registers<232>();
// BWD:       const unsigned kept_here[2] = {(unsigned)attn::load_shared_int(kept_at + 128 * c), (unsigned)attn::load_shared_int(kept_at + 128 * c + 16)};
// BWD:       ((kept_here[e] & kept_mask << 16 * h) != 0) ?
!t = tensor<?x?x?x64xf16>

module attributes {nvidia.tuned = {"every kernel" = {dropout = "ahead"}}} {
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
