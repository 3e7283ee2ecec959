// Windows of captured tensors for Hopper: made where the schedule has room for them. Idle warps of the producer bring them for each warpgroup, from
// the message of the warp that loads on; a choice of 0 leaves the reads as they are. In a kernel of pairs they come with the values of query rows.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=IR
// RUN: sed 's/attributes {}/attributes {tile.choices = {windows = 0}}/' %s | attn-opt -p nvidia-kernel - > %t
// RUN: attn-opt %t -p nvidia-load-windows | FileCheck %s --check-prefix=NONE
// RUN: sed 's/tile.schedule = {/tile.schedule = {windows = 1 : i64, /' %t | attn-opt -p nvidia-load-windows - | FileCheck %s --check-prefix=STAGE
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: sed 's/attributes {}/attributes {tile.choices = {windows = 0}}/' %s | attn-translate --to cuda - | FileCheck %s --check-prefix=WITHOUT
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to cuda - | FileCheck %s --check-prefix=BWD

// IR:        tile.schedule = {{.*}} windows = 2 : i64}
// IR:        "tile.load_window"(%arg3, {{.*}}) {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>} : {{.*}} -> tensor<192x?xf16>
// IR:        tensor.extract %{{.*}} : tensor<192x?xf16>

// The pass alone: a schedule without stages for windows stays without them, one that has a stage gets them.
// NONE-NOT:  tile.load_window
// NONE:      memref.load %arg3
// STAGE:     "tile.load_window"(%arg3, {{.*}}) {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>}
// STAGE-NOT: memref.load %arg3

// CHECK:     attn::barrier_init(shared + kToldFree, 3 * attn::kWarpArrivals);
// CHECK:     attn::barrier_init(shared + kWindowsFull, 96);
// CHECK:     attn::barrier_init(shared + kWindowsFree, 4 * attn::kWarpArrivals);
// CHECK:     head = pair / q_n0, batch = pair % q_n0;
// CHECK:     attn::tma_load({{.*}}, &k_map_64x128
// CHECK:     attn::store_shared_int4(shared + kTold {{.*}}, kv, block, head, batch);
// CHECK:     for (int part = 0; part < 3; ++part) {
// CHECK:       attn::barrier_wait(shared + kWindowsFree
// CHECK:       attn::load_window<__half, 64, 128, 96, 272>(window{{.*}}, 64 * part, {{.*}}, maker, barrier, copies);
// CHECK-NEXT:  attn::window_arrive(barrier, copies);
// CHECK:     attn::barrier_wait(shared + kWindowsFull
// CHECK:     attn::window_pair(window_at + 2176 * h + 16 * c, __half(), of_window[2 * h], of_window[2 * h + 1]);
// CHECK-NOT: arg3[
// CHECK:     attn::warp_arrive(shared + kWindowsFree

// WITHOUT-NOT: attn::load_window<__half
// WITHOUT:     arg3[

// BWD:       attn::load_window<__half, {{[0-9]+}}, 128, 32, 272>(window
// BWD-NEXT:  attn::window_arrive(
// BWD:       of_window[n] = attn::window_element(window_at + 272 * (8 * c + n % 2) + 16 * (n / 2), __half());

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
