// Without a mask all programs have the same steps: those that would not fill all multiprocessors a last time are shared by them.
// RUN: attn-opt %s --split-input-file -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' \
// RUN:   | sed '/_pairs(/s/ {$/ attributes {tile.choices = {length = 3072 : i64}} {/' | attn-opt --split-input-file -p nvidia-kernel - | FileCheck %s --check-prefix=CHOSEN
// RUN: attn-opt %s --split-input-file -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' \
// RUN:   | sed '/^\/\/ -----$/,$d' | sed '/_pairs(/s/ {$/ attributes {tile.choices = {length = 3072 : i64}} {/' | attn-translate --to cuda - | FileCheck %s

// CHOSEN-LABEL: func.func @full_bwd_2_pairs(
// CHOSEN-SAME:    partial_words = 2359296 : i64, pieces = 8 : i64

// One thread finds out how they are shared.
// CHECK:      __launch_bounds__(512, 1) full_bwd_2_pairs(
// CHECK:          attn::store_sharing([[AT:shared \+ [0-9]+]], attn::shared_programs(blocks * arg1_n1 * arg1_n0, gridDim.x, rows_of_head / 64 * {{.*}}, 144, 8, 2, 3));
// CHECK:        __syncthreads();

// Others than the producer have the rows of their piece from it.
// CHECK:        attn::fewer_registers<88>();
// CHECK:          const int program = attn::uniform(attn::load_shared_int([[AT]] + 40 + 16 * (round % 4)));
// CHECK:            const int2 rows = attn::rows_of_piece(
// CHECK-NEXT:       #pragma unroll 1
// CHECK-NEXT:       for (int query0 = max(0, rows.x - member * rows_of_head); query0 < min({{.*}}, rows.y - member * rows_of_head); query0 += 64) {

// The producer goes through units, and has two where its steps are of two programs.
// CHECK:        attn::fewer_registers<24>();
// CHECK:          int unit = blockIdx.x;
// CHECK:            const attn::Piece piece = attn::piece_at(unit, [[AT]]);
// CHECK:            attn::store_piece([[AT]] + 32 + 16 * (round % 4), piece,
// CHECK:            if (attn::has_second_piece(unit, attn::load_shared_int4([[AT]]))) {
// CHECK-NEXT:         ++unit;
// CHECK:              const int drawn = lane == 0 ? atomicAdd(counter, 1) : 0;

// Who has the last steps waits for the sums of the others, adds them in their order, and stores the results.
// CHECK:        attn::more_registers<200>();
// CHECK:            if (piece >= 0 && (piece & attn::kWaitedFor)) {
// CHECK:              attn::store_partial(to + 0, [[DV:sum[_0-9]*]]);
// CHECK-NEXT:         attn::store_partial(to + 1024, [[DK:sum[_0-9]*]]);
// CHECK-NEXT:         attn::named_sync(8 + warpgroup, 128);
// CHECK-NEXT:         if (threadIdx.x % 128 == 0) attn::semaphore_pass([[FLAG:counter \+ 8 \+ 2 \*]] worker + warpgroup, 1);
// CHECK:              for (; other < worker; ++other) {
// CHECK:                attn::semaphore_wait([[FLAG]] other + warpgroup, 1);
// CHECK-NEXT:           *([[FLAG]] other + warpgroup) = 0;
// CHECK:                attn::add_partial(from + 0, [[DV]]);
// CHECK-NEXT:           attn::add_partial(from + 1024, [[DK]]);
// CHECK:              auto *to = &
!t = tensor<?x?x?x64xf16>
func.func @full(%q: !t, %k: !t, %v: !t) -> !t {
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

// -----

// Under a mask they are not: short programs come last, those of more heads together at the end.
// CHOSEN-LABEL: func.func @causal_bwd_2_pairs(
// CHOSEN-SAME:    heads = 8 : i64
// CHOSEN-SAME:    last = 128 : i64
// CHOSEN-NOT:     pieces
!t = tensor<?x?x?x128xf16>
func.func @causal(%q: !t, %k: !t, %v: !t) -> !t {
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
