"""Systems of a unit triangle: a thread has a column of the solution in its registers, by a CUDA function that the program brings along."""

from attn_mlir.backends.nvidia.tilelang.context import Context
from attn_mlir.dialects.numbers import flag
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

SOLVE = "tile.solve_unit"
SOURCE = '''SOLVE = r"""
// x <- X with (I + A) X = x, for a strictly lower (or upper) triangle A of C rows, both in shared memory, row after row; x has Columns.
// Four rows at a time take away what the rows before them say: four sums that do not wait for each other.
template <int C, bool Upper, int Columns> __device__ __forceinline__ void attn_solve_unit(const float *a, float *x) {
  for (int column = threadIdx.x; column < Columns; column += blockDim.x) {
    float solved[C];
#pragma unroll
    for (int i = 0; i < C; ++i) solved[i] = x[i * Columns + column];
#pragma unroll
    for (int turn = 0; turn < C; turn += 4) {
      const int first = Upper ? C - 4 - turn : turn;
#pragma unroll
      for (int before = 0; before < turn; before += 4) {
        const int s = Upper ? C - 4 - before : before;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float4 of = *(const float4 *)(a + (first + r) * C + s);
          solved[first + r] -= of.x * solved[s] + of.y * solved[s + 1] + of.z * solved[s + 2] + of.w * solved[s + 3];
        }
      }
#pragma unroll
      for (int n = 1; n < 4; ++n) {
        const int r = Upper ? 3 - n : n;
#pragma unroll
        for (int m = 0; m < n; ++m) {
          const int s = Upper ? 3 - m : m;
          solved[first + r] -= a[(first + r) * C + first + s] * solved[first + s];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < C; ++i) x[i * Columns + column] = solved[i];
  }
}
"""


'''
"""What stands before a program that solves systems."""


def print_solve(context: Context, op: ir.Operation) -> None:
    """`tile.solve_unit`: the triangle and the right side come to shared memory, where the solution takes the place of the latter."""
    triangle, right = (context.where[operand] for operand in op.operands)
    size = triangle.shape[0]
    if size % 4 or triangle.dtype != "float32" or triangle.shape != (size, size):
        raise UnsupportedError(f"tilelang: systems of {size} rows: they are of f32, and their rows come in fours ({op.location})")
    a = triangle
    if triangle.scope != "shared":
        a = context.tiles.new("triangle", "shared", triangle.shape, "float32")
        context.line(f"T.copy({triangle.name}, {a.name})")
    solved = context.tiles.new("solved", "shared", right.shape, "float32")
    context.line(f"T.copy({right.whole()}, {solved.name})")
    function = f"attn_solve_unit<{size}, {str(flag(op, 'upper')).lower()}, {right.shape[1]}>"
    context.line("T.sync_threads()")
    context.line(f'T.call_extern("handle", "{function}", T.address_of({a.at("0", "0")}), T.address_of({solved.at("0", "0")}))')
    context.line("T.sync_threads()")
    context.where[op.results[0]] = solved
