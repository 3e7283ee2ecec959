// Programs on a GPU: parameters and grids of kernels, and the memory of what they make. States in C++ what
// backends/nvidia/{launch,program,chains}.py, backends/amd/{launch,program}.py and backends/gpu/{packing,outputs}.py state in Python.
namespace attn {

// Of how many elements the address and the strides of an argument must be multiples; 0: of none, and any strides do.
inline int64_t alignment(const Kernel &kernel, int argument, Element element) {
  for (int i = 0; i < kernel.parameter_count; ++i) {
    const Parameter &p = kernel.parameters[i];
    if (p.argument != argument) continue;
    if (p.kind == MAP) return 16 / facts(element).bytes;
    if (p.kind == POINTER && p.align) return p.align;
  }
  return 0;
}
// Whether the rows of [B, H, S, D] are as near to each other as kernels count, and lie apart.
inline bool has_near_rows(const Tensor &x) {
  if (!kRowBytes || x.rank != 4 || x.shape[2] <= 1) return true;
  return x.strides[2] >= x.shape[3] && x.strides[2] * facts(x.element).bytes < kRowBytes;
}
inline bool is_aligned(const Tensor &x, int64_t elements) {
  if (!elements) return true;
  int last = x.rank - 1;
  if ((x.strides[last] != 1 && x.shape[last] != 1) || uintptr_t(x.data) % uintptr_t(elements * facts(x.element).bytes)) return false;
  for (int d = 0; d < last; ++d)
    if (x.shape[d] != 1 && x.strides[d] % elements) return false;
  return has_near_rows(x);
}
// Whether a kernel is told, or knows, all strides of an argument.
inline bool knows_strides(const Kernel &kernel, int argument, const Tensor &x) {
  int64_t dense = 1;
  for (int d = x.rank - 1; d >= 0; dense *= x.shape[d--]) {
    bool told = x.shape[d] <= 1 || x.strides[d] == dense;
    for (int i = 0; !told && i < kernel.parameter_count; ++i) {
      const Parameter &p = kernel.parameters[i];
      told = p.argument == argument && (p.kind == MAP || (p.kind == STRIDE && p.dim == d));
    }
    if (!told) return false;
  }
  return true;
}
// A tensor in the memory of the call, whose rows begin at multiples of so many elements.
inline Tensor aligned_tensor(Context &c, const Tensor &like, int64_t elements) {
  Tensor made = like;
  int last = like.rank - 1;
  if (elements <= 1 || like.shape[last] % elements == 0) return new_tensor(c, like);
  int64_t columns = made.shape[last];
  made.shape[last] = ceil_div(columns, elements) * elements;
  made = new_tensor(c, made);
  made.shape[last] = columns;
  return made;
}

inline uint64_t packed(Number type, int64_t integer, double real) {
  bool fits = type == INT ? integer == int32_t(integer) : type != UNSIGNED || integer == int64_t(uint32_t(integer));
  if (!fits) throw Failure{fail(ATTN_MLIR_ERROR_VALUE, "the number %lld does not fit into 32 bits", (long long)integer)};
  uint64_t word = 0;
  float single = float(real);
  switch (type) {
    case FLOAT: std::memcpy(&word, &single, 4); break;
    case DOUBLE: std::memcpy(&word, &real, 8); break;
    default: word = uint64_t(integer);  // little endian: the first four bytes are an int
  }
  return word;
}
inline uint64_t scalar(const Value &value, Number type) {
  double real = double(value.word);
  float single;
  if (value.tensor.element == F64) std::memcpy(&real, &value.word, 8);
  if (value.tensor.element == F32) std::memcpy(&single, &value.word, 4), real = single;
  return packed(type, type == FLOAT || type == DOUBLE ? 0 : value.word, real);
}

// How many sequences, or segments of them, the programs of a kernel over chunks have.
inline int64_t sequences_of(const Kernel &kernel, const std::vector<Value> &arguments) {
  if (kernel.sequences >= 0) return arguments[size_t(kernel.sequences)].tensor.shape[0] - 1;
  const int64_t *over = arguments[size_t(kernel.over)].tensor.shape;
  return over[0] * (kernel.segment ? ceil_div(over[2], kernel.segment) : 1);
}

// Launches a kernel on its arguments: operands, outputs, for pairs the keys of a chunk, then memory of its own.
inline void launch(Context &c, const Kernel &kernel, const std::vector<Value> &arguments) {
  int64_t counter_bytes = 0;
  for (int i = 0; i < kernel.parameter_count; ++i) {
    const Parameter &p = kernel.parameters[i];
    if (p.kind == COUNTER) counter_bytes = 4 * (p.columns > 1 ? p.columns : 1);
  }
  char *counter = counter_bytes ? c.arena.take(counter_bytes) : nullptr;
  const int64_t *over = arguments[size_t(kernel.over)].tensor.shape;
  int64_t batch = kernel.grid == CHUNKS ? sequences_of(kernel, arguments) : over[0], heads = over[1];
  int64_t blocks = kernel.grid == CHUNKS ? kernel.blocks : ceil_div(over[2], kernel.block_q);
  int64_t cluster = kernel.cluster, grid[] = {1, 1, 1};
  if (kernel.persistent) {
    constexpr int64_t kPrograms = (int64_t(1) << 31) - (1 << 16);
    if (__int128(blocks) * heads * batch > kPrograms)
      throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "a batch of %lld with %lld heads of %lld rows does not fit into one launch: call it for parts",
                         (long long)batch, (long long)heads, (long long)over[2])};
  } else if (heads > 65535 || batch > 65535) {
    throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "a batch of %lld with %lld heads does not fit into one launch: call it for parts",
                       (long long)batch, (long long)heads)};
  }
  if (c.measuring) return;
#ifdef ATTN_COPY_ENGINE
  if (kernel.persistent) {
    int64_t most = active().loaded->multiprocessors * kernel.occupancy / cluster, wanted = blocks * heads * batch;
    most = most < wanted ? most : wanted;
    grid[0] = (most > 1 ? most : 1) * cluster;
  }
#endif
  if (!kernel.persistent) grid[0] = blocks * cluster, grid[1] = heads, grid[2] = batch;
  clear(c, counter, counter_bytes);
  size_t count = size_t(kernel.parameter_count);
#ifdef ATTN_COPY_ENGINE
  std::vector<CUtensorMap> maps(count);
#endif
  std::vector<uint64_t> words(count);
  std::vector<void *> pointers(count);
  for (size_t i = 0; i < count; ++i) {
    const Parameter &p = kernel.parameters[i];
    pointers[i] = &words[i];
    const Value *value = p.argument >= 0 ? &arguments[size_t(p.argument)] : nullptr;
    switch (p.kind) {
      case MAP:
      case WINDOW:
#ifdef ATTN_COPY_ENGINE
        maps[i] = map_of(value->tensor, p), pointers[i] = &maps[i];
#endif
        break;
      case POINTER: words[i] = uint64_t(uintptr_t(value->tensor.data)); break;
      case SIZE: words[i] = packed(p.type, value->tensor.shape[p.dim], 0); break;
      case STRIDE: words[i] = packed(p.type, value->tensor.strides[p.dim], 0); break;
      case SCALAR: words[i] = scalar(*value, p.type); break;
      case COUNTER: words[i] = uint64_t(uintptr_t(counter)); break;
      case BLOCKS: words[i] = packed(p.type, blocks, 0); break;
    }
  }
  start(kernel, grid, pointers.data());
}

// Launches a kernel for each slice of the columns of v, which makes these columns of o; states `gpu.slices`. The last slice ends with v.
inline void launch_slices(Context &c, const Kernel &kernel, const std::vector<Value> &arguments, int operands) {
  const Tensor &values = arguments[size_t(kernel.values)].tensor;
  const int64_t count = values.shape[values.rank - 1];
  for (int64_t first = 0; first < count; first += kernel.columns) {
    const int64_t begin = first + kernel.columns > count ? count - kernel.columns : first;
    std::vector<Value> seen = arguments;
    for (int i = 0; i < int(seen.size()); ++i) {
      Tensor &x = seen[size_t(i)].tensor;
      if (i != kernel.values && (i < operands || x.rank != 4)) continue;
      x.shape[x.rank - 1] = kernel.columns;
      x.data += begin * x.strides[x.rank - 1] * facts(x.element).bytes;
    }
    launch(c, kernel, seen);
  }
}

// Sums as programs see them: with dimensions for chunk (and batch and head) in front, of stride 0 where all add in one place.
inline Tensor seen_by(const Tensor &one, const int64_t *programs, const int64_t *slots, int lead, bool apart) {
  Tensor seen = one;
  seen.rank = one.rank + lead;
  std::memcpy(seen.shape + lead, one.shape, sizeof(int64_t) * size_t(one.rank));
  std::memcpy(seen.strides + lead, one.strides, sizeof(int64_t) * size_t(one.rank));
  int64_t step = one.count();
  for (int d = lead - 1; d >= 0; step *= slots[d--]) {
    seen.shape[d] = programs[d];
    // Where there is one program any stride will do: what torch gives.
    int64_t alone = apart ? step : seen.shape[d + 1] * seen.strides[d + 1];
    seen.strides[d] = programs[d] == 1 ? alone : slots[d] == 1 ? 0 : step;
  }
  return seen;
}

// Runs the kernel of a step. made[i].data, where it is there, is where a result belongs; elsewhere memory of the call is taken.
inline void launch_step(Context &c, const Step &step, const Value *values, Tensor *made) {
  const Kernel &kernel = *step.kernel;
  std::vector<Value> arguments;
  for (int i = 0; i < step.operand_count; ++i) {
    Value value = values[step.operands[i]];
    int64_t elements = value.is_tensor ? alignment(kernel, i, value.tensor.element) : 0;
    if (value.is_tensor && !is_aligned(value.tensor, elements)) {
      Tensor near = aligned_tensor(c, value.tensor, elements);
      copy(c, value.tensor, near);
      value.tensor = near;
    }
    arguments.push_back(value);
  }
  const int64_t *over = arguments[size_t(kernel.over)].tensor.shape;
  const int64_t programs[] = {ceil_div(over[2], kernel.block_q), over[0], over[1]};
  std::vector<Tensor> written(size_t(step.result_count)), slot(size_t(step.result_count));
  std::vector<int64_t> slot_counts(size_t(step.result_count), 1);
  for (int i = 0; i < step.result_count; ++i) {
    const Output &output = kernel.outputs[i];
    int number = step.operand_count + i;
    Tensor &tensor = written[size_t(i)] = made[i];
    int64_t elements = alignment(kernel, number, tensor.element), last = tensor.rank ? tensor.shape[tensor.rank - 1] : 1;
    bool whole = elements <= 1 || last % elements == 0;
    if (output.kind != STORE && !whole)
      throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "%s adds to a tensor of %lld columns, it takes multiples of %lld", kernel.entry,
                         (long long)last, (long long)elements)};
    bool fits = tensor.data && whole && is_aligned(tensor, elements);
    fits = fits && (output.kind == SCATTER ? tensor.dense() : knows_strides(kernel, output.kind == STORE ? number : -1, tensor) || elements > 1);
    if (!fits) tensor = aligned_tensor(c, tensor, elements);
    if (!made[i].data) made[i] = tensor;
    Value seen;
    seen.is_tensor = true, seen.tensor = tensor;
    if (output.kind != STORE) {
      int lead = output.kind == SCATTER ? 3 : 1;
      int64_t slots[] = {1, 1, 1};
      if (kernel.grid == CHUNKS) slots[0] = kernel.blocks;
      else if (output.slots)
        for (int d = 0; d < 3; ++d) slots[d] = output.disjoint[d == 0 ? 0 : d == 1 ? 2 : 1] ? 1 : programs[d];
      Tensor first = tensor;
      int64_t count = slots[0] * slots[1] * slots[2];
      if (count > 1) {
        first.set_dense_strides();
        first.data = c.arena.take(count * first.bytes());
        slot[size_t(i)] = first, slot_counts[size_t(i)] = count;
      }
      // Every block of columns writes all of its slot.
      if (kernel.grid != CHUNKS && count > 1) clear(c, first.data, count * first.bytes());
      else if (kernel.grid != CHUNKS && (!output.stored || tensor.shape[tensor.rank - 2] > output.stored)) fill(c, tensor, 0.0);
      seen.tensor = seen_by(first, kernel.grid == CHUNKS ? slots : programs, slots, lead, count > 1 || kernel.grid == CHUNKS);
    }
    arguments.push_back(seen);
  }
  if (kernel.grid == PAIRS) {
    arguments.emplace_back();
    arguments.back().word = kernel.block_q, arguments.back().tensor.element = INDEX;
  }
  int64_t words = kernel.partial_words, zeros = 0;
  if (kernel.semaphore_over >= 0) {
    const int64_t *rows = arguments[size_t(kernel.semaphore_over)].tensor.shape;
    words = zeros = rows[0] * rows[1] * ceil_div(rows[2], kernel.semaphore_rows) * kernel.semaphore_parts;
  }
  if (kernel.semaphore_over >= 0 || words) {
    arguments.emplace_back();
    Tensor &own = arguments.back().tensor;
    arguments.back().is_tensor = true, own.element = I32, own.rank = 1, own.shape[0] = words, own.strides[0] = 1;
    own.data = c.arena.take(4 * words);
    clear(c, own.data, 4 * zeros);
  }
  if (kernel.values < 0) launch(c, kernel, arguments);
  else launch_slices(c, kernel, arguments, step.operand_count);
  for (int i = 0; i < step.result_count; ++i) {
    if (slot_counts[size_t(i)] > 1) fold(c, slot[size_t(i)], slot_counts[size_t(i)], written[size_t(i)]);
    if (written[size_t(i)].data != made[i].data) copy(c, written[size_t(i)], made[i]);
  }
}

// The return that a result of step `s` is, value `number`, whose shape is in `values`: itself, or as the sum over groups of one head each. -1: none.
inline int return_of(const Program &program, const Value *values, int s, int number) {
  for (int r = 0; r < program.return_count; ++r)
    if (program.returns[r] == number) return r;
  int made = program.argument_count;
  for (int t = 0; t < program.step_count; made += program.steps[t++].result_count) {
    const Step &step = program.steps[t];
    if (t <= s || step.same < 0 || step.operands[step.same] != number) continue;
    bool known = true;
    for (int o = 0; o < step.operand_count; ++o) known = known && (o == step.same || step.operands[o] < program.argument_count);
    if (known && same_operand(step, values) == number) return return_of(program, values, t, made);
  }
  return -1;
}

// Runs a program on values[0 ... arguments]; targets[i] is where return i is to be. Without rows or keys everything is zero.
inline void run_program(Context &c, const Program &given, std::vector<Value> &values, const Tensor *targets) {
  const Program &program = chosen(given, values);
  bool empty = false;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t *shape = values[i].tensor.shape, most[] = {ATTN_MAX_HEADS, ATTN_MAX_HEADS, ATTN_MAX_POSITIONS};
    for (int d = 0; d < 3; ++d) {
      empty = empty || shape[d] == 0;
      if (shape[d] > most[d])
        throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "%c has %lld %s, kernels for GPUs take up to %lld: call it for parts of the tensors", "qkv"[i],
                           (long long)shape[d], d == 0 ? "batches" : d == 1 ? "heads" : "positions", (long long)most[d])};
    }
  }
  auto place = [&](const Step &, int s, int number, int, Tensor &tensor) {
    values[size_t(number)].tensor = tensor;
    int r = return_of(program, values.data(), s, number);
    if (r >= 0 && targets[r].data && targets[r].element == tensor.element) tensor = targets[r];
  };
  run_steps(c, program, values, targets, empty, place, [&](const Step &step, Tensor *made) { launch_step(c, step, values.data(), made); });
}

struct Forward {
  const Program *program;
};

// Runs the forward pass on q, k, v and captures, of which none is empty; `made` are o and the row outputs.
inline void run_forward(Context &c, const Forward &forward, std::vector<Value> values, const std::vector<Tensor> &made) {
  run_program(c, *forward.program, values, made.data());
}

}  // namespace attn
