// The backward of softmax: a program has 128 keys, one in each lane of a half wave; queries go by.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline{keep-hosts=false}' | attn-translate --to hip - | FileCheck %s

// What belongs to rows alone is plain code.
// CHECK:       ATTN_DEVICE void attention_bwd_0_row_dot_rows(
// CHECK:         attn::from_lane(total, (attn::thread() & 63) ^ step)
// CHECK:       ATTN_KERNEL(256, 1) attention_bwd_0_row_dot(

// CHECK-LABEL: ATTN_KERNEL(256, 1) attention_bwd_2_pairs(
// Keys and values stay in registers; once more the keys by columns, for the sums over them.
// CHECK:         attn::Bits4 [[K:arg1_2]][4];
// CHECK:         attn::Bits4 [[V:arg2_2]][4];
// CHECK:         attn::Bits4 [[COLUMNS:arg1_columns]][1][8];
// CHECK:         attn::load_column<64>(

// Sums have factors, so that weights are no numbers that the hardware takes as zero.
// CHECK:         float sum_scale = attn::kFirstScale;
// CHECK:         float [[SCALE:sum_2_scale]] = attn::kFirstScale;

// Queries and output gradients are kept by rows and by columns; what belongs to a query, once.
// CHECK:           attn::keep_four<8>(memory + 0,
// CHECK:           attn::keep_transposed<8>(memory + 8192,
// CHECK:           if (attn::thread() < 64) {
// CHECK:             ((float *)(memory + 32768))[attn::thread()] =

// CHECK:           attn::product_f16<2, 4, 8>(s, memory + 0, [[K]]);
// CHECK:           attn::product_f16<2, 4, 8>(s_2, memory + 16384, [[V]]);
// CHECK:           exp2f(
// CHECK:           attn::fit_scale([[SCALE]], row < {{n_[0-9]+}}, [[DS:[a-z_0-9]+]]_f32, sum_2);
// CHECK:           attn::pack_scaled([[DS]], [[DS]]_f32, [[SCALE]]);
// CHECK:           attn::product_f16<2, 4, 8>(sum, memory + 24576,
// CHECK:           attn::product_f16<2, 4, 8>(sum_2, memory + 8192, [[DS]]);

// Sums over keys.
// CHECK:           attn::keep_half<16>(memory + {{[0-9]+}}, column + 32 * n + r, row,
// CHECK:           attn::barrier();
// CHECK:           attn::product_of_waves(query_sum[0], {{.*}}, [[COLUMNS]][i],
// CHECK:           attn::atomic_add(

// CHECK:         attn::settle(sum, sum_scale);
// CHECK:         attn::settle(sum_2, [[SCALE]]);
// CHECK:         attn::store_row<8, 64>(
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
