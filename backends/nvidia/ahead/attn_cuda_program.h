// Programs on an NVIDIA GPU: parameters and grids of kernels, tensors for the copy engine, and the memory of what they make. States in C++ what
// backends/nvidia/{launch,program,chains}.py and backends/gpu/{packing,outputs}.py state in Python.
namespace attn {

enum ParameterKind : uint8_t { MAP, POINTER, SIZE, STRIDE, SCALAR, COUNTER, BLOCKS };
enum Number : uint8_t { INT, UNSIGNED, LONG, FLOAT, DOUBLE };

// See backends/gpu/kernel.py.
struct Parameter {
  ParameterKind kind;
  int argument, dim;
  Number type;
  int columns, rows, swizzle;  // of a box
  int align;
};

struct Output {
  Kind kind;
  bool slots;        // programs add to slots of their own, which are added up in order
  bool disjoint[3];  // by chunk, head and batch
};

struct Kernel {
  const char *entry;
  const char *code;
  int threads, shared_bytes, cluster;
  bool persistent;
  int64_t block_q;
  bool pairs;
  int over;
  int parameter_count;
  const Parameter *parameters;
  const Output *outputs;
  int turn_over;  // -1: no turns
  int64_t turn_rows, turn_parts;
};

extern "C" __attribute__((visibility("hidden"))) const char attn_device_code[];
inline const Kernel kCopy{"attn_copy", attn_device_code, 256, 0, 1, false, 1, false, 0, 0, nullptr, nullptr, -1, 0, 0};
inline const Kernel kAdd{"attn_add", attn_device_code, 256, 0, 1, false, 1, false, 0, 0, nullptr, nullptr, -1, 0, 0};
inline const Kernel kFold{"attn_fold", attn_device_code, 256, 0, 1, false, 1, false, 0, 0, nullptr, nullptr, -1, 0, 0};
inline const Kernel kFill{"attn_fill", attn_device_code, 256, 0, 1, false, 1, false, 0, 0, nullptr, nullptr, -1, 0, 0};

// The kernel in the context of the call, loaded at its first launch there.
inline CUfunction load(const Kernel &kernel) {
  Loaded &loaded = *active().loaded;
  std::lock_guard<std::mutex> guard(lock());
  CUfunction &function = loaded.functions[&kernel];
  if (function) return function;
  if (kernel.shared_bytes > loaded.shared_bytes)
    throw Failure{fail(ATTN_MLIR_ERROR_PROCESSOR, "the kernel %s needs %d bytes of shared memory, a block of threads may have %d on a %s",
                       kernel.entry, kernel.shared_bytes, loaded.shared_bytes, loaded.name)};
  Relaxed relaxed;
  CUmodule module = nullptr;
  CUfunction found = nullptr;
  check(driver().cuModuleLoadData(&module, kernel.code), "loading a kernel");
  check(driver().cuModuleGetFunction(&found, module, kernel.entry), "looking for a kernel");
  if (kernel.shared_bytes) check(driver().cuFuncSetAttribute(found, kDynamicShared, kernel.shared_bytes), "giving a kernel shared memory");
  return function = found;
}

inline void start(const Kernel &kernel, const int64_t grid[3], void **parameters) {
  CUlaunchConfig config{};
  CUlaunchAttribute cluster{};
  for (int d = 0; d < 3; ++d) config.grid[d] = unsigned(grid[d]), config.block[d] = d ? 1 : unsigned(kernel.threads);
  config.shared_bytes = unsigned(kernel.shared_bytes), config.stream = active().stream;
  if (kernel.cluster > 1) {
    cluster.id = kCluster;
    cluster.value.cluster[0] = unsigned(kernel.cluster), cluster.value.cluster[1] = cluster.value.cluster[2] = 1;
    config.attributes = &cluster, config.count = 1;
  }
  char what[128];
  std::snprintf(what, sizeof what, "launching %s", kernel.entry);
  check(driver().cuLaunchKernelEx(&config, load(kernel), parameters, nullptr), what);
}

// A tensor, and sizes, as the kernels of attn_device.cu take them.
constexpr int kDeviceRank = 12;
struct Strided {
  char *data;
  long long strides[kDeviceRank];
  int element, bytes;
  explicit Strided(const Tensor &x) : data(x.data), strides{}, element(x.element), bytes(int(facts(x.element).bytes)) {
    for (int d = 0; d < x.rank; ++d) strides[kDeviceRank - x.rank + d] = x.strides[d];
  }
};
struct Shape {
  long long count;
  int sizes[kDeviceRank];
  explicit Shape(const Tensor &x) : count(x.count()) {
    if (x.rank > kDeviceRank) throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "tensors of %d dimensions cannot be copied here", x.rank)};
    for (int d = 0; d < kDeviceRank; ++d) sizes[d] = d < kDeviceRank - x.rank ? 1 : int(x.shape[d - kDeviceRank + x.rank]);
  }
};
inline void start_elementwise(const Kernel &kernel, int64_t count, void **parameters) {
  if (count == 0) return;
  int64_t blocks = ceil_div(count, kernel.threads);
  const int64_t grid[] = {blocks < 1 << 20 ? blocks : 1 << 20, 1, 1};
  start(kernel, grid, parameters);
}

inline void clear(Context &c, char *data, int64_t bytes) {
  if (!c.measuring && bytes > 0) check(driver().cuMemsetD8Async(CUdeviceptr(uintptr_t(data)), 0, size_t(bytes), active().stream), "clearing memory");
}
inline void fill(Context &c, const Tensor &to, double value) {
  if (c.measuring) return;
  if (value == 0.0 && to.dense()) return clear(c, to.data, to.bytes());
  Strided target(to);
  Shape shape(to);
  void *parameters[] = {&target, &shape, &value};
  start_elementwise(kFill, shape.count, parameters);
}
inline void copy(Context &c, const Tensor &from, const Tensor &to) {
  if (c.measuring) return;
  Strided source(from), target(to);
  Shape shape(to);
  void *parameters[] = {&source, &target, &shape};
  start_elementwise(kCopy, shape.count, parameters);
}
inline void add(Context &c, const Tensor &x, const Tensor &y, const Tensor &to) {
  if (c.measuring) return;
  Strided first(x), second(y), target(to);
  Shape shape(to);
  void *parameters[] = {&first, &second, &target, &shape};
  start_elementwise(kAdd, shape.count, parameters);
}
inline void fold(Context &c, const Tensor &slot, int64_t slots, const Tensor &to) {
  if (c.measuring) return;
  Strided source(slot), target(to);
  Shape shape(to);
  long long count = slots, step = slot.count();
  void *parameters[] = {&source, &target, &shape, &count, &step};
  start_elementwise(kFold, shape.count, parameters);
}

// Of how many elements the address and the strides of an argument must be multiples; 1: of none.
inline int64_t alignment(const Kernel &kernel, int argument, Element element) {
  for (int i = 0; i < kernel.parameter_count; ++i) {
    const Parameter &p = kernel.parameters[i];
    if (p.argument != argument) continue;
    if (p.kind == MAP) return 16 / facts(element).bytes;
    if (p.kind == POINTER && p.align) return p.align;
  }
  return 1;
}
inline bool is_aligned(const Tensor &x, int64_t elements) {
  if (elements == 1) return true;
  int last = x.rank - 1;
  if ((x.strides[last] != 1 && x.shape[last] != 1) || uintptr_t(x.data) % uintptr_t(elements * facts(x.element).bytes)) return false;
  for (int d = 0; d < last; ++d)
    if (x.shape[d] != 1 && x.strides[d] % elements) return false;
  return true;
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
  if (elements == 1 || like.shape[last] % elements == 0) return new_tensor(c, like);
  int64_t columns = made.shape[last];
  made.shape[last] = ceil_div(columns, elements) * elements;
  made = new_tensor(c, made);
  made.shape[last] = columns;
  return made;
}

inline CUtensorMap map_of(const Tensor &given, const Parameter &p) {
  Tensor x = given;
  if (x.rank == 5) {  // sums of all chunks in one place
    x.rank = 4;
    std::memmove(x.shape, x.shape + 1, sizeof(int64_t) * 4), std::memmove(x.strides, x.strides + 1, sizeof(int64_t) * 4);
  }
  static const int types[] = {0, 6, 9, 7, 8};  // by attn::Element
  int64_t width = facts(x.element).bytes;
  uint64_t sizes[4], steps[3];
  const uint32_t box[] = {uint32_t(p.columns), uint32_t(p.rows), 1, 1}, ones[] = {1, 1, 1, 1};
  for (int d = 0; d < 4; ++d) {
    sizes[d] = uint64_t(x.shape[3 - d]);
    if (d) steps[d - 1] = x.shape[3 - d] == 1 ? 16 : uint64_t(x.strides[3 - d] * width);
  }
  CUtensorMap map;
  int swizzle = p.swizzle == 128 ? 3 : p.swizzle == 64 ? 2 : p.swizzle == 32 ? 1 : 0;
  CUresult result = driver().cuTensorMapEncodeTiled(&map, types[x.element], 4, x.data, sizes, steps, box, ones, 0, swizzle, 3, 0);
  check(result, "describing a tensor to the copy engine");
  return map;
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

// Launches a kernel on its arguments: operands, outputs, for pairs the keys of a chunk, then turns.
inline void launch(Context &c, const Kernel &kernel, const std::vector<Value> &arguments) {
  bool counts = false;
  for (int i = 0; i < kernel.parameter_count; ++i) counts = counts || kernel.parameters[i].kind == COUNTER;
  char *counter = counts ? c.arena.take(4) : nullptr;
  const int64_t *over = arguments[size_t(kernel.over)].tensor.shape;
  int64_t blocks = ceil_div(over[2], kernel.block_q), cluster = kernel.cluster, grid[] = {1, 1, 1};
  if (kernel.persistent) {
    constexpr int64_t kPrograms = (int64_t(1) << 31) - (1 << 16);
    if (__int128(blocks) * over[1] * over[0] > kPrograms)
      throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "a batch of %lld with %lld heads of %lld rows does not fit into one launch: call it for parts",
                         (long long)over[0], (long long)over[1], (long long)over[2])};
  } else if (over[1] > 65535 || over[0] > 65535) {
    throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "a batch of %lld with %lld heads does not fit into one launch: call it for parts",
                       (long long)over[0], (long long)over[1])};
  }
  if (c.measuring) return;
  if (kernel.persistent) {
    int64_t most = active().loaded->multiprocessors / cluster, wanted = ceil_div(blocks * over[1] * over[0], cluster);
    most = most < wanted ? most : wanted;
    grid[0] = (most > 1 ? most : 1) * cluster;
  } else {
    grid[0] = ceil_div(blocks, cluster) * cluster, grid[1] = over[1], grid[2] = over[0];
  }
  clear(c, counter, counts ? 4 : 0);
  size_t count = size_t(kernel.parameter_count);
  std::vector<CUtensorMap> maps(count);
  std::vector<uint64_t> words(count);
  std::vector<void *> pointers(count);
  for (size_t i = 0; i < count; ++i) {
    const Parameter &p = kernel.parameters[i];
    pointers[i] = &words[i];
    const Value *value = p.argument >= 0 ? &arguments[size_t(p.argument)] : nullptr;
    switch (p.kind) {
      case MAP: maps[i] = map_of(value->tensor, p), pointers[i] = &maps[i]; break;
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
    int64_t elements = value.is_tensor ? alignment(kernel, i, value.tensor.element) : 1;
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
    bool whole = elements == 1 || last % elements == 0;
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
      if (output.slots)
        for (int d = 0; d < 3; ++d) slots[d] = output.disjoint[d == 0 ? 0 : d == 1 ? 2 : 1] ? 1 : programs[d];
      Tensor first = tensor;
      int64_t count = slots[0] * slots[1] * slots[2];
      if (count > 1) {
        first.set_dense_strides();
        first.data = c.arena.take(count * first.bytes());
        slot[size_t(i)] = first, slot_counts[size_t(i)] = count;
        clear(c, first.data, count * first.bytes());
      } else {
        fill(c, tensor, 0.0);
      }
      seen.tensor = seen_by(first, programs, slots, lead, count > 1);
    }
    arguments.push_back(seen);
  }
  if (kernel.pairs) {
    arguments.emplace_back();
    arguments.back().word = kernel.block_q, arguments.back().tensor.element = INDEX;
  }
  if (kernel.turn_over >= 0) {
    const int64_t *rows = arguments[size_t(kernel.turn_over)].tensor.shape;
    int64_t bytes = 4 * rows[0] * rows[1] * ceil_div(rows[2], kernel.turn_rows) * kernel.turn_parts;
    arguments.emplace_back();
    Tensor &turns = arguments.back().tensor;
    arguments.back().is_tensor = true, turns.element = I32, turns.rank = 1, turns.shape[0] = bytes / 4, turns.strides[0] = 1;
    turns.data = c.arena.take(bytes);
    clear(c, turns.data, bytes);
  }
  launch(c, kernel, arguments);
  for (int i = 0; i < step.result_count; ++i) {
    if (slot_counts[size_t(i)] > 1) fold(c, slot[size_t(i)], slot_counts[size_t(i)], written[size_t(i)]);
    if (written[size_t(i)].data != made[i].data) copy(c, written[size_t(i)], made[i]);
  }
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
  values.resize(size_t(program.value_count));
  int next = program.argument_count;
  for (int s = 0; s < program.step_count; ++s) {
    const Step &step = program.steps[s];
    std::vector<Tensor> made(size_t(step.result_count));
    for (int i = 0; i < step.result_count; ++i) {
      Tensor &tensor = made[size_t(i)] = shape_of(step.results[i], values.data(), step.operands);
      for (int r = 0; !tensor.data && r < program.return_count; ++r)
        if (program.returns[r] == next + i && targets[r].data && targets[r].element == tensor.element) tensor = targets[r];
    }
    if (empty || !step.kernel) {
      for (Tensor &tensor : made) {
        if (!tensor.data) tensor = new_tensor(c, tensor);
        if (empty) fill(c, tensor, 0.0);
        else add(c, values[size_t(step.operands[0])].tensor, values[size_t(step.operands[1])].tensor, tensor);
      }
    } else {
      launch_step(c, step, values.data(), made.data());
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

struct Forward {
  const Program *program;
};

// Runs the forward pass on q, k, v and captures, of which none is empty; `made` are o and the row outputs.
inline void run_forward(Context &c, const Forward &forward, std::vector<Value> values, const std::vector<Tensor> &made) {
  run_program(c, *forward.program, values, made.data());
}

}  // namespace attn
