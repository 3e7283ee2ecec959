// Launch plans: kernels in their order, the grids they run on, and the slots of sums. States in C++ what
// backends/cpu/{program,slots,launch,driver}.py and backends/{memory,sizes}.py state in Python, so that results have the same bits.
namespace attn {

enum Grid : uint8_t { ROWS, PAIRS, CHUNKS };
struct Output {
  Kind kind;
  bool disjoint[3];  // by chunk, head and batch
};

struct Kernel {
  void (*worker)(int64_t *);
  int64_t block_q;
  Grid grid;
  int over;
  bool serial;
  int threads;
  const Output *outputs;
  int64_t blocks;    // of CHUNKS
  int sequences;     // the operand that has the offsets of sequences, or -1
  int64_t segment;   // positions of a segment, or 0
};

struct Words {
  std::vector<int64_t> words;
  explicit Words(int64_t first, int64_t end, int64_t blocks, int64_t heads) : words{first, end, blocks, heads} {}
  void append(const Tensor &t) {
    words.push_back(int64_t(reinterpret_cast<intptr_t>(t.data)));
    words.insert(words.end(), t.shape, t.shape + t.rank);
    words.insert(words.end(), t.strides, t.strides + t.rank);
  }
  void append(const Value &value) {
    if (value.is_tensor) append(value.tensor);
    else words.push_back(value.word);
  }
};

inline void run_worker(const Kernel &kernel, Words &words, int64_t first, int64_t end, int threads) {
  words.words[0] = first, words.words[1] = end;
  if (kernel.threads > 0 && threads > kernel.threads) threads = kernel.threads;
  if (threads > end - first) threads = int(end - first);
  on_threads(threads, [&] { kernel.worker(words.words.data()); });
}

// The programs of a launch, and what of them runs one after another: 0 nothing, 1 the batch, 2 also the heads, 3 everything.
struct Launch {
  int64_t batch, heads, blocks, size;
  int level;

  int64_t count() const { return level == 0 ? 1 : level == 1 ? batch : level == 2 ? batch * heads : 1; }
  void slots(const bool disjoint[3], int64_t out[3]) const {
    out[0] = level == 3 || disjoint[0] ? 1 : blocks;
    out[1] = level == 3 || disjoint[2] || level >= 1 ? 1 : batch;
    out[2] = level == 3 || disjoint[1] || level >= 2 ? 1 : heads;
  }
};

inline int64_t slot_bytes(const Kernel &kernel, const Launch &launch, const Tensor *made, int outputs, int64_t width) {
  int64_t total = 0;
  for (int i = 0; i < outputs; ++i) {
    int64_t slots = 1, along[3];
    if (kernel.outputs[i].kind == ACCUMULATE) slots = launch.blocks;
    if (kernel.outputs[i].kind == SCATTER) launch.slots(kernel.outputs[i].disjoint, along), slots = along[0] * along[1] * along[2];
    total += (slots - 1) * made[i].count() * width;
  }
  return total;
}

// `sequences` are those of a kernel over chunks.
inline Launch choose_launch(const Kernel &kernel, const Tensor &over, const Tensor *made, int outputs, int64_t inputs, int64_t sequences) {
  if (kernel.grid == CHUNKS) return {sequences, over.shape[1], kernel.blocks, kernel.block_q, 0};
  constexpr int64_t kMinKeys = 256, kMemory = int64_t(64) << 20;
  const int64_t busy = processors() * 4 > 8 ? processors() * 4 : 8;
  int64_t batch = over.shape[0], heads = over.shape[1], length = over.shape[2], width = 1;
  for (int i = 0; i < outputs; ++i) width = facts(made[i].element).bytes > width ? facts(made[i].element).bytes : width;
  int64_t blocks = ceil_div(length, kernel.block_q), limit = inputs > kMemory ? inputs : kMemory;
  if (kernel.serial) return {batch, heads, blocks, kernel.block_q, 3};
  bool found = false;
  Launch best{};
  int64_t rank[3] = {};
  auto consider = [&](const Launch &launch) {
    int64_t bytes = slot_bytes(kernel, launch, made, outputs, width);
    if (bytes > limit) return;
    int64_t free = (launch.level == 0 ? batch * heads : launch.level == 1 ? heads : 1) * launch.blocks;
    int64_t key[3] = {-(free < busy ? free : busy), launch.level, bytes};
    bool less = !found;
    for (int i = 0; found && i < 3; ++i)
      if (key[i] != rank[i]) { less = key[i] < rank[i]; break; }
    if (less) found = true, best = launch, std::memcpy(rank, key, sizeof key);
  };
  for (int level = 0; level < 3; ++level) {
    int64_t free = level == 0 ? batch * heads : level == 1 ? heads : 1;
    if (kernel.grid == PAIRS) {
      int64_t least = 8 * kernel.block_q > kMinKeys ? 8 * kernel.block_q : kMinKeys, own = free > 1 ? free : 1;
      int64_t most = ceil_div(busy, own), many = ceil_div(length, kMinKeys), busy_once = ceil_div(busy, 4 * own);
      int64_t keys = ceil_div(length, least);
      if (busy_once > many) busy_once = many;
      if (keys < busy_once) keys = busy_once;
      most = most < keys ? most : keys;
      for (int64_t chunks : {int64_t(1), most > 1 ? most : 1}) {
        int64_t each = ceil_div(blocks, chunks);
        consider({batch, heads, ceil_div(blocks, each), each * kernel.block_q, level});
      }
    } else {
      consider({batch, heads, blocks, kernel.block_q, level});
    }
  }
  if (found) return best;
  if (kernel.grid == PAIRS) return {batch, heads, 1, blocks * kernel.block_q, 3};
  return {batch, heads, blocks, kernel.block_q, 3};
}

// Sums that programs added up in slots of their own, [slots, ...] of `made`, in an order that follows from their number.
inline void add_slots(Context &c, char *slots, int64_t count, const Tensor &made) {
  constexpr int64_t kFew = 1 << 14;
  int64_t n = made.count(), width = facts(made.element).bytes;
  if (n <= kFew) {  // halves are folded, in float64
    std::vector<double> sums(size_t(count * n));
    for (int64_t i = 0; i < count * n; ++i) sums[size_t(i)] = load(slots + i * width, made.element);
    for (int64_t left = count; left > 1;) {
      int64_t half = left / 2;
      for (int64_t i = 0; i < half * n; ++i) sums[size_t(i)] += sums[size_t((left - half) * n + i)];
      left -= half;
    }
    for (int64_t i = 0; i < n; ++i) store(made.data + i * width, made.element, sums[size_t(i)]);
    return;
  }
  Tensor slot = made;
  slot.data = slots;
  if (count == 1) copy(slot, made, c.threads);
  for (int64_t i = 1; i < count; ++i) {
    Tensor next = slot;
    next.data = slots + i * n * width;
    add(i == 1 ? slot : made, next, made, c.threads);
  }
}

// Runs the kernel of a step. made[i].data, where it is there, is where a result belongs; elsewhere memory is taken.
inline void launch_step(Context &c, const Step &step, const Value *values, Tensor *made, int64_t inputs) {
  const Kernel &kernel = *step.kernel;
  const Tensor &over = values[step.operands[kernel.over]].tensor;
  int64_t sequences = over.shape[0] * (kernel.segment ? ceil_div(over.shape[2], kernel.segment) : 1);
  if (kernel.sequences >= 0) sequences = values[step.operands[kernel.sequences]].tensor.shape[0] - 1;
  Launch launch = choose_launch(kernel, over, made, step.result_count, inputs, sequences);
  Words words(0, 0, launch.blocks, launch.heads);
  for (int i = 0; i < step.operand_count; ++i) words.append(values[step.operands[i]]);
  std::vector<char *> held(size_t(step.result_count), nullptr);
  std::vector<int64_t> counts(size_t(step.result_count), 0);
  for (int i = 0; i < step.result_count; ++i) {
    const Output &output = kernel.outputs[i];
    if (output.kind == STORE) {
      if (!made[i].data) made[i] = new_tensor(c, made[i]);
      words.append(made[i]);
      continue;
    }
    int64_t along[3] = {launch.blocks, 1, 1};
    if (output.kind == SCATTER) launch.slots(output.disjoint, along);
    int64_t slots = along[0] * along[1] * along[2], lead = output.kind == SCATTER ? 3 : 1;
    bool alone = slots == 1;
    if (!made[i].data) made[i] = new_tensor(c, made[i]);
    Tensor seen;
    seen.element = made[i].element;
    seen.rank = made[i].rank + int(lead);
    std::memcpy(seen.shape + lead, made[i].shape, sizeof(int64_t) * size_t(made[i].rank));
    if (alone) {
      seen.data = made[i].data;
      std::memcpy(seen.strides + lead, made[i].strides, sizeof(int64_t) * size_t(made[i].rank));
      if (!c.measuring) fill(c, made[i], 0.0);
    } else {
      Tensor block = made[i];
      block.set_dense_strides();
      seen.data = held[size_t(i)] = c.arena.take(slots * block.bytes());
      counts[size_t(i)] = slots;
      std::memcpy(seen.strides + lead, block.strides, sizeof(int64_t) * size_t(block.rank));
      int64_t step_size = block.count();
      for (int d = int(lead) - 1; d >= 0; --d) {
        seen.strides[d] = along[d] == 1 ? 0 : step_size;
        step_size *= along[d];
      }
      if (!c.measuring && slots * block.bytes() > 0) {
        for_parts(c.threads, slots * block.bytes(), [&](int64_t b, int64_t e) { std::memset(seen.data + b, 0, size_t(e - b)); });
      }
    }
    int64_t programs[3] = {launch.blocks, launch.batch, launch.heads};
    for (int d = 0; d < lead; ++d) seen.shape[d] = programs[d];
    words.append(seen);
  }
  if (kernel.grid == PAIRS) words.words.push_back(launch.size);
  if (c.measuring) return;
  int64_t total = launch.batch * launch.heads * launch.blocks, each = total / launch.count();
  for (int64_t i = 0; i < launch.count(); ++i) run_worker(kernel, words, i * each, (i + 1) * each, launch.level < 3 ? c.threads : 1);
  for (int i = 0; i < step.result_count; ++i)
    if (held[size_t(i)]) add_slots(c, held[size_t(i)], counts[size_t(i)], made[i]);
}

// Runs a program on values[0 ... arguments]; targets[i] is where return i is to be. Without rows or keys everything is zero.
inline void run_program(Context &c, const Program &given, std::vector<Value> &values, const Tensor *targets) {
  const Program &program = chosen(given, values);
  bool empty = false;
  int64_t inputs = 0;
  for (int i = 0; i < program.argument_count; ++i)
    if (values[size_t(i)].is_tensor) inputs += values[size_t(i)].tensor.bytes();
  for (int i = 0; i < 2; ++i)
    for (int d = 0; d < 3; ++d) empty = empty || values[size_t(i)].tensor.shape[d] == 0;
  auto place = [&](const Step &step, int, int number, int i, Tensor &tensor) {
    for (int r = 0; !tensor.data && r < program.return_count; ++r) {
      const Tensor &target = targets[r];
      bool columns = target.rank > 0 && (target.strides[target.rank - 1] == 1 || target.shape[target.rank - 1] <= 1);
      bool fits = target.data && target.element == tensor.element && (step.kernel && !empty ? target.rank >= 3 && columns : true);
      // Slots are added up in dense memory.
      if (step.kernel && step.kernel->outputs[i].kind != STORE) fits = fits && target.dense();
      if (program.returns[r] == number && fits) tensor = target;
    }
  };
  run_steps(c, program, values, targets, empty, place, [&](const Step &step, Tensor *made) { launch_step(c, step, values.data(), made, inputs); });
}

// The kernels of the forward pass: for blocks of queries, for few of them, for one, for one of grouped heads.
struct Forward {
  const Kernel *usual, *few, *one, *group;
  int64_t few_rows;
  int query_count;
  const int *queries;  // arguments of q's sizes besides q
};

inline Tensor group_heads(const Tensor &x, int64_t group) {
  Tensor made = x;
  made.shape[1] = x.shape[1] / group, made.shape[2] = group;
  made.strides[1] = x.strides[1] * group, made.strides[2] = x.strides[1];
  return made;
}

// Runs the forward pass on q, k, v and captures, of which none is empty; `made` are o and the row outputs.
inline void run_forward(Context &c, const Forward &forward, std::vector<Value> values, std::vector<Tensor> made) {
  if (c.measuring) return;
  const Tensor &first = values[0].tensor;
  int64_t heads = first.shape[1], keys = values[1].tensor.shape[1], rows = first.shape[2];
  const Kernel *kernel = forward.usual;
  if (rows == 1 && heads != keys) {
    kernel = forward.group;
    values[0].tensor = group_heads(values[0].tensor, heads / keys);
    for (int i = 0; i < forward.query_count; ++i) {
      Tensor &query = values[size_t(forward.queries[i])].tensor;
      query = group_heads(query, heads / keys);
    }
    for (Tensor &each : made) each = group_heads(each, heads / keys);
  } else if (rows <= forward.few_rows) {
    kernel = rows == 1 ? forward.one : forward.few;
  }
  const Tensor &q = values[0].tensor;
  int64_t blocks = ceil_div(q.shape[2], kernel->block_q), programs = q.shape[0] * q.shape[1] * blocks;
  Words words(0, programs, blocks, q.shape[1]);
  for (const Value &value : values) words.append(value);
  for (const Tensor &each : made) words.append(each);
  run_worker(*kernel, words, 0, programs, c.threads);
}

}  // namespace attn
