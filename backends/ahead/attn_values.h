// What programs consist of, whatever the target: steps, results, values, and the memory of a call. Each target states its own `Kernel`
// and `run_program`.
namespace attn {

struct Kernel;

enum Kind : uint8_t { STORE, ACCUMULATE, SCATTER };
enum Role : uint8_t { QUERY, KEY, ROW, LIKE };

struct Result {
  Role role;
  int operand;
  Element element;
  int rank;
  int64_t shape[kMaxRank];  // -1: any
};

struct Step {
  const Kernel *kernel;  // null: the sum of two tensors
  int operand_count;
  const int *operands;
  int result_count;
  const Result *results;
};

struct Program {
  int argument_count;
  int step_count;
  const Step *steps;
  int return_count;
  const int *returns;
  int value_count;
  const Program *longer;  // takes its place for `longer_keys` keys and more; null: nothing does
  int64_t longer_keys;
};

// A tensor, or a number as the word that kernels read.
struct Value {
  bool is_tensor = false;
  int64_t word = 0;
  Tensor tensor;
};

// Memory for what a call makes besides its results. Measured first, without a base; then served from one block.
struct Arena {
  char *base = nullptr;
  size_t used = 0;

  char *take(int64_t bytes) {
    char *place = base ? base + used : nullptr;
    used += (size_t(bytes) + 63) / 64 * 64;
    return place;
  }
};

struct Context {
  Arena arena;
  bool measuring = false;  // nothing runs: only the memory is counted
  int threads = 1;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline Tensor new_tensor(Context &c, const Tensor &like) {
  Tensor made = like;
  made.set_dense_strides();
  made.data = c.arena.take(made.bytes());
  return made;
}

inline Tensor shape_of(const Result &result, const Value *values, const int *operands) {
  Tensor made;
  made.element = result.element;
  made.rank = result.rank;
  const Tensor &first = result.role == LIKE ? values[operands[result.operand]].tensor : values[result.role == KEY ? 1 : 0].tensor;
  int taken = result.role == LIKE ? result.rank : 3;
  for (int d = 0; d < result.rank; ++d) made.shape[d] = d < taken ? first.shape[d] : result.shape[d];
  made.set_dense_strides();
  return made;
}

}  // namespace attn
