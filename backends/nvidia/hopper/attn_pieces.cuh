
namespace attn {

// ---- pieces of programs: those that would not fill all thread blocks a last time are shared by all of them, as many steps for each -------------

// The part of a program that a unit of work is: steps [begin, end) of it, counted through all heads of a group. `worker` is the number of the
// thread block that has it among those that share programs, -1 where the program is whole.
struct Piece {
  int program, begin, end, worker;
};

// How the work is shared. Programs from `whole` on are, each of `total` steps, which are `steps` together; a worker gets `chunk` of them, of one
// program or of two that follow each other. `most` workers; a program has at most `pieces` pieces, of no fewer than `least` steps, and is
// not shared where a worker would have less than `gain` steps fewer than a whole program. Only programs that a thread block draws are shared:
// who waits for a piece knows then that somebody runs it.
struct Sharing {
  int whole, total, chunk, steps, workers;
};
ATTN_DEVICE Sharing shared_programs(int programs, int blocks, int total, int most, int pieces, int least, int gain) {
  Sharing s{programs, total, 1, 0, 0};
  const int rest = programs % blocks;
  most = most < blocks ? most : blocks;
  if (rest == 0 || rest == programs || total > 2147483647 / 256 || rest > 2147483647 / total) return s;  // rows are counted in 31 bits
  const int even = (rest * total + most - 1) / most, few = (total + pieces - 1) / pieces;
  const int chunk = even > few ? (even > least ? even : least) : (few > least ? few : least);
  if (chunk + gain > total) return s;
  s.whole = programs - rest, s.chunk = chunk, s.steps = rest * total, s.workers = (s.steps + chunk - 1) / chunk;
  return s;
}

// Units of work: whole programs have their own numbers, and a worker has two that follow. The later program comes first: of that the worker has
// the beginning, which somebody waits for; of the other one it has the end, and may wait for others.
ATTN_DEVICE Piece piece_of(int unit, int4 sharing) {
  const int whole = sharing.x, total = sharing.y, chunk = sharing.z, steps = sharing.w;
  if (unit < whole) return {unit, 0, total, -1};
  const int worker = (unit - whole) / 2, from = worker * chunk, to = from + chunk < steps ? from + chunk : steps;
  const int number = (to - 1) / total - ((unit - whole) & 1), begin = from - number * total, end = to - number * total;
  return {whole + number, begin > 0 ? begin : 0, end < total ? end : total, worker};
}
// The unit after this one: a worker's second piece, where its steps are of two programs, else the one that was drawn.
ATTN_DEVICE bool has_second_piece(int unit, int4 sharing) {
  const int whole = sharing.x, total = sharing.y, chunk = sharing.z, steps = sharing.w;
  if (unit < whole || (unit - whole) % 2) return false;
  const int from = (unit - whole) / 2 * chunk, to = from + chunk < steps ? from + chunk : steps;
  return from / total != (to - 1) / total;
}
ATTN_DEVICE int unit_of_draw(int draw, int whole) { return draw < whole ? draw : 2 * draw - whole; }
// The first worker that has steps of a program.
ATTN_DEVICE int first_worker(int program, int4 sharing) { return (program - sharing.x) * sharing.y / sharing.z; }
// ---- (what precedes is arithmetic of numbers alone, and is tested on a CPU)

// In shared memory: `Sharing` but for the workers; how many units there are, and the last draw; then pieces, by rounds.
ATTN_DEVICE void store_sharing(uint32_t at, Sharing s) {
  store_shared_int4(at, s.whole, s.total, s.chunk, s.steps);
  store_shared_int4(at + 16, s.whole + 2 * s.workers, s.whole + s.workers - 1, 0, 0);
}
// Tells which piece a unit is: its first row of queries and the one after its last, in steps of so many `queries` counted through all heads of a
// group, its program, and `kWaitedFor` or `kWaits` beside 4 times the worker, or -1 where the program is whole.
constexpr int kWaitedFor = 1, kWaits = 2;
ATTN_DEVICE void store_piece(uint32_t slot, Piece piece, int total, int queries) {
  const bool whole = piece.worker < 0;
  const int code = whole ? -1 : 4 * piece.worker + (piece.end < total ? kWaitedFor : piece.begin > 0 ? kWaits : 0);
  store_shared_int4(slot, piece.begin * queries, whole ? 2147483647 : piece.end * queries, piece.program, code);
}
// The piece that a unit is; of a program that there is not where there are no more units.
ATTN_DEVICE Piece piece_at(int unit, uint32_t at) {
  if (unit >= load_shared_int(at + 16)) return {2147483647, 0, 0, -1};
  return piece_of(unit, load_shared_int4(at));
}
ATTN_DEVICE int2 rows_of_piece(uint32_t slot) {
  int2 rows;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(rows.x), "=r"(rows.y) : "r"(slot) : "memory");
  return rows;
}

// A thread's part of sums, 16 bytes of each of the 128 threads of a warpgroup after another.
template <int N> ATTN_DEVICE void store_partial(float4 *to, const float (&sum)[N]) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) __stcg(to + 128 * c, make_float4(sum[4 * c], sum[4 * c + 1], sum[4 * c + 2], sum[4 * c + 3]));
}
template <int N> ATTN_DEVICE void add_partial(const float4 *from, float (&sum)[N]) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const float4 x = __ldcg(from + 128 * c);
    sum[4 * c] += x.x, sum[4 * c + 1] += x.y, sum[4 * c + 2] += x.z, sum[4 * c + 3] += x.w;
  }
}

}  // namespace attn
