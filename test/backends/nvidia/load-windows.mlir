// Windows of captured tensors for Hopper: made where the schedule has room for them. Idle warps of the producer bring them for each warpgroup, from
// the message of the warp that loads on; a choice of 0 leaves the reads as they are. In a kernel of pairs they come with the values of query rows.
// RUN: sed 's/attributes {}/attributes {tile.choices = {emitter = "hopper"}}/' %s > %t.hopper
// RUN: attn-opt %t.hopper -p nvidia-kernel | FileCheck %s --check-prefix=IR
// RUN: sed 's/attributes {}/attributes {tile.choices = {windows = 0}}/' %s | attn-opt -p nvidia-kernel - > %t
// RUN: attn-opt %t -p nvidia-load-windows | FileCheck %s --check-prefix=NONE
// RUN: sed 's/tile.schedule = {/tile.schedule = {windows = 1 : i64, /' %t | attn-opt -p nvidia-load-windows - | FileCheck %s --check-prefix=STAGE
// RUN: attn-translate %t.hopper --to cuda | FileCheck %s
// RUN: sed 's/attributes {}/attributes {tile.choices = {windows = 0}}/' %s | attn-translate --to cuda - | FileCheck %s --check-prefix=WITHOUT
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to cuda - | FileCheck %s --check-prefix=BWD

// IR:        tile.schedule = {{.*}} stages = 4 : i64, {{.*}} windows = 1 : i64}
// IR:        "tile.load_window"(%arg3, {{.*}}) {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>} : {{.*}} -> tensor<192x?xf16>
// IR:        tensor.extract %{{.*}} : tensor<192x?xf16>

// The pass alone: a schedule without stages for windows stays without them, one that has a stage gets them.
// NONE-NOT:  tile.load_window
// NONE:      memref.load %arg3
// STAGE:     "tile.load_window"(%arg3, {{.*}}) {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>}
// STAGE-NOT: memref.load %arg3

// CHECK:     attn::barrier_init(shared + kToldFree, 3 * attn::kWarpArrivals);
// CHECK:     attn::barrier_init(shared + kWindowsFull, 32);
// CHECK:     attn::barrier_init(shared + kWindowsFree, 4 * attn::kWarpArrivals);
// CHECK:     head = pair / q_n0, batch = pair % q_n0;
// CHECK:     attn::tma_load({{.*}}, &k_map_64x128
// CHECK:     attn::store_shared_int4(shared + kTold {{.*}}, kv, block, head, batch);
// CHECK:     for (int part = attn::warp_index() - 13; part < 3; part += 3) {
// CHECK:       attn::barrier_wait(shared + kWindowsFree
// CHECK:       if (attn::is_described([[MAP:arg3_window_64x64_2]]) && 64 * part + 64 <= [[ROWS:n_[0-9]+]]) {
// CHECK:         attn::window_expect(barrier, 16384);
// CHECK-NEXT:    attn::tma_load(to + 0, &[[MAP]], barrier, [[KEY:n_[0-9]+]] + 0, [[QUERY:n_[0-9]+]] + 64 * part, head, 0);
// CHECK-NEXT:    attn::tma_load(to + 8192, &[[MAP]], barrier, [[KEY]] + 64, [[QUERY]] + 64 * part, head, 0);
// CHECK:       else {
// CHECK-NEXT:    attn::load_window<__half, 64, 128, 32>(window{{.*}}, 64 * part, [[ROWS]], {{.*}}, maker, copies);
// CHECK:       attn::window_arrive(barrier, copies);
// CHECK:     attn::barrier_wait(shared + kWindowsFull
// CHECK:     if (c % 2 == 0) attn::load_matrices((window_at ^ 16 * c % 128) + 16 * c / 128 * 8192, window_bits);
// CHECK-NOT: arg3[

// What has been read is given back before the exponentials.
// CHECK:     attn::warp_arrive(shared + kWindowsFree
// CHECK:     exp2f

// WITHOUT-NOT: attn::load_window<__half
// WITHOUT:     arg3[

// BWD:       if (attn::is_described([[MAP:arg3_window_64x[0-9]+_2]])) {
// BWD:         attn::tma_load({{.*}}, &[[MAP]],
// BWD:         attn::load_window<__half, {{[0-9]+}}, 128, 32>(window
// BWD:       attn::window_arrive(
// BWD:       if (c % 2 == 0) attn::load_matrices_transposed(window_at + 1024 * c, window_bits);
// BWD:       exp2f(fmaf(of_window

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
