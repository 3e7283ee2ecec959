// What programs consist of, whatever the target: steps, results, values, and the memory of a call. Each target states its own `Kernel`
// and `run_program`.
namespace attn {

struct Kernel;

enum Kind : uint8_t { STORE, ACCUMULATE, SCATTER };

struct Value;

struct Result {
  Element element;
  int rank;
  void (*sizes)(const Value *values, const int *operands, int64_t *made);  // see backends/sizes.py
};

struct Step {
  const Kernel *kernel;  // null: the sum of two tensors
  int operand_count;
  const int *operands;
  int result_count;
  const Result *results;
  int same;  // the operand that the result is where it would have its shape; -1: none is
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
  const Program *single;  // takes its place for one position
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
  result.sizes(values, operands, made.shape);
  made.set_dense_strides();
  return made;
}

// The value that the result of a step is: the sum over groups of one head each. -1: none is.
inline int same_operand(const Step &step, const Value *values) {
  if (step.same < 0) return -1;
  const Tensor made = shape_of(step.results[0], values, step.operands);
  const Tensor &given = values[step.operands[step.same]].tensor;
  for (int d = 0; d < made.rank; ++d)
    if (made.shape[d] != given.shape[d]) return -1;
  return step.operands[step.same];
}

// The program that takes the place of this one for tensors of these sizes.
inline const Program &chosen(const Program &program, const std::vector<Value> &values) {
  const Program *found = &program;
  while (found->longer && values[2].tensor.shape[2] >= found->longer_keys) found = found->longer;
  return found->single && values[0].tensor.shape[2] == 1 ? *found->single : *found;
}

// A target defines these; they do nothing where only the workspace is measured.
inline void fill(Context &c, const Tensor &to, double value);
inline void copy(Context &c, const Tensor &from, const Tensor &to);
inline void add(Context &c, const Tensor &x, const Tensor &y, const Tensor &to);

// Runs the steps of a program on values[0 ... arguments]; targets[i] is where return i is to be. With `empty`, without rows or keys, everything is
// zero. `place(step, s, number, i, made)` gives result i of step s, value `number`, the memory where it belongs, if it can lie there, and
// `launch(step, made)` runs a kernel.
template <class Place, class Launch>
void run_steps(Context &c, const Program &program, std::vector<Value> &values, const Tensor *targets, bool empty, Place place, Launch launch) {
  values.resize(size_t(program.value_count));
  int next = program.argument_count;
  for (int s = 0; s < program.step_count; ++s) {
    const Step &step = program.steps[s];
    if (int same = same_operand(step, values.data()); same >= 0) {
      values[size_t(next++)] = values[size_t(same)];
      continue;
    }
    std::vector<Tensor> made(size_t(step.result_count));
    for (int i = 0; i < step.result_count; ++i) {
      made[size_t(i)] = shape_of(step.results[i], values.data(), step.operands);
      place(step, s, next + i, i, made[size_t(i)]);
    }
    if (empty || !step.kernel) {
      for (Tensor &tensor : made) {
        if (!tensor.data) tensor = new_tensor(c, tensor);
        if (empty) fill(c, tensor, 0.0);
        else add(c, values[size_t(step.operands[0])].tensor, values[size_t(step.operands[1])].tensor, tensor);
      }
    } else {
      launch(step, made.data());
    }
    for (const Tensor &tensor : made) {
      values[size_t(next)].is_tensor = true;
      values[size_t(next++)].tensor = tensor;
    }
  }
  for (int r = 0; r < program.return_count; ++r) {
    const Tensor &from = values[size_t(program.returns[r])].tensor;
    if (targets[r].data != from.data) copy(c, from, targets[r]);
  }
}

}  // namespace attn
