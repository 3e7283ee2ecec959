// Gradients of dense captured tensors in a kernel of pairs: each warp writes what it adds where its part of the window was, and TMA stores boxes of it
// in the first batch entry, and adds them in others once those before are there; the window's stage is free when they have been read. Sums of
// one tensor may be of 16 bits.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v+arg3 only=true},attn-simplify,attn-outline{keep-hosts=false}' > %t
// RUN: attn-translate %t --to cuda | FileCheck %s
// RUN: attn-opt %t -p nvidia-kernel | FileCheck %s --check-prefix=SCHEDULE

// SCHEDULE:  tile.schedule = {{.*}} narrow = "-1:f16", {{.*}} semaphore_rows = 128 : i64, {{.*}} stored_tiles = "-1:f16", tile_warps = 1 : i64, turn_entries = 4 : i64, turn_rows = 256 : i64

// CHECK:     if (in_turn && batch) attn::semaphore_reached(before, (int)(step - begun) + 1);
// CHECK:     if (attn::is_described([[MAP:out3_window_64x128_2]])) {
// CHECK:       if (in_turn && batch == 0) attn::tma_store(&[[MAP]], shared + [[WINDOW:[0-9]+]] + 32768 * stage + 16384 * (1 * part + 0), {{n_[0-9]+}} + 64 * part
// CHECK:       attn::tma_add(&[[MAP]], shared + [[WINDOW]] + 32768 * stage + 16384 * (1 * part + 0), {{n_[0-9]+}} + 64 * part
// CHECK:     attn::bulk_wait_read<0>();
// CHECK:     attn::warp_arrive(barriers
// CHECK:     attn::semaphore_pass(turn, (int)(step - begun) + 1);

// CHECK:     uint32_t tile_bits[4];
// CHECK:     const float [[P:[a-z0-9_]+]] = exp2f(fmaf(of_window
// CHECK:     const float [[WEIGHT:[a-z0-9_]+]] = [[P]] * {{.*}};
// CHECK:     of_tile[2 * h + e] = [[WEIGHT]];
// CHECK:     tile_bits[c % 2 * 2 + h] = attn::pack_f16(of_tile[2 * h], of_tile[2 * h + 1]);
// CHECK:     if (c % 2) attn::store_matrices_transposed(window_at + 1024 * (c - 1), tile_bits[0], tile_bits[1], tile_bits[2], tile_bits[3]);
// CHECK-NOT: attn::add_global(

// Keys that do not exist add zeros. All weights are there behind the barrier of the sums over keys: a warp of the producer sends them.
// CHECK:     attn::clear_columns<__half, 128>(shared + [[WINDOW]] + 32768 * stage, 64 * warpgroup + 16 * warp, [[COUNT:n_[0-9]+]], lane);
// CHECK:     attn::fence_proxy_async();
// CHECK:     attn::named_sync(1, 256);
// CHECK:     if (!attn::is_described([[MAP]])) {
// CHECK:     attn::add_window<__half, 128>(to, {{.*}}, 64 * warpgroup, 128, [[COUNT]], threadIdx.x % 128);
// CHECK:     attn::named_arrive(10 + warpgroup + 2 * stage, 160);
// CHECK:     attn::tma_add(&out1_map
// CHECK:     attn::wgmma_wait<0>();
// CHECK-NOT: attn::bulk_wait_read<1>();
// CHECK:     attn::warp_arrive(barriers

func.func @attention(%q: tensor<?x?x?x64xf16>, %k: tensor<?x?x?x64xf16>, %v: tensor<?x?x?x64xf16>, %bias: tensor<?x?x?xf16>) -> tensor<?x?x?x64xf16> attributes {} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %read = tensor.extract %bias[%h, %q_idx, %kv_idx] : tensor<?x?x?xf16>
      %wide = arith.extf %read : f16 to f32
      %score = arith.addf %s, %wide : f32
      "attn.yield"(%score) : (f32) -> ()
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
  }) {outputs = []} : (tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>, tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16>
  return %o : tensor<?x?x?x64xf16>
}
