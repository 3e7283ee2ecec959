// What a library is told by its user, and the checks of it. Every check has a message.
namespace attn {

enum ArgumentKind : uint8_t { TENSOR, REAL, INTEGER, DROP, KEEP_SCALE };
enum Size : uint8_t { B, HQ, HKV, SQ, SKV, D, DV, HV, SIZES };  // HV: heads of v, where they are not those of k

// q, k, v and what the functions capture.
struct Argument {
  const char *name;
  ArgumentKind kind;
  Element element;
  int rank;
  int64_t shape[kMaxRank];  // -1: any
  bool nonzero;             // a number that is divided by
  int like;                 // 0 or 1: it has batch, heads, positions and the order of q or of k; -1: it has not
};

// Dimension `dim` of a captured tensor is indexed with `index`, which runs up to a size of the problem.
struct Extent {
  int argument, dim;
  const char *index;
  Size size;
};

struct Library {
  const char *name;
  Element element, score;  // of q, k, v and o, and of row outputs
  int argument_count;
  const Argument *arguments;
  int input_order[4], output_order[4];  // where batch, head, position and dim are
  int row_count;
  const char *const *rows;
  const Forward *forward;  // null: without inference
  const Program *training, *backward;  // null: without gradients
  int gradient_count;
  const int *gradients;  // the arguments that have one
  int extent_count;
  const Extent *extents;
  int (*check_reads)(const int64_t *sizes, const Value *values);  // 0, or an error that was told
  const Machine *machine;  // what the library was made for
};

// What the user gives for an argument.
struct Given {
  const DLTensor *tensor = nullptr;
  double real = 0;
  int64_t integer = 0;
  Given(const DLTensor *x) : tensor(x) {}
  Given(double x) : real(x) {}
  Given(int64_t x) : integer(x) {}
};

struct Workspace {
  void *data;
  size_t size;
  void *stream;
  int32_t threads;
};

// Whether no two elements lie at the same place: by growing strides, each step goes past all that smaller ones reach.
inline bool apart(const Tensor &x) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int d = 0; d < x.rank; ++d) {
    if (x.shape[d] == 0) return true;
    if (x.shape[d] > 1) steps.emplace_back(x.strides[d] < 0 ? -x.strides[d] : x.strides[d], x.shape[d]);
  }
  std::sort(steps.begin(), steps.end());
  __int128 reach = 0;
  for (auto &step : steps) {
    if (step.first <= reach) return false;
    reach += __int128(step.first) * (step.second - 1);
  }
  return true;
}

// The bytes between the first and the last element, and whether they are all its own.
struct Extents {
  const char *name;
  uintptr_t begin = 0, end = 0, first = 0;
  bool filled = false;
};
inline Extents extents_of(const char *name, const Tensor &x) {
  Extents made;
  made.name = name;
  if (!x.data || x.count() == 0) return made;
  int64_t width = facts(x.element).bytes, low = 0, high = 0;
  for (int d = 0; d < x.rank; ++d) (x.strides[d] < 0 ? low : high) += (x.shape[d] - 1) * x.strides[d];
  made.first = reinterpret_cast<uintptr_t>(x.data);
  made.begin = made.first + uintptr_t(low * width), made.end = made.first + uintptr_t((high + 1) * width);
  made.filled = made.end - made.begin == uintptr_t(x.bytes());
  return made;
}
inline Extents extents_of(const char *name, const void *data, size_t size) {
  Extents made;
  made.name = name;
  made.begin = made.first = reinterpret_cast<uintptr_t>(data), made.end = made.begin + (data ? size : 0), made.filled = true;
  return made;
}

// Refuses results, the first ones of `all`, that lie over other memory. Tensors with gaps may lie in the gaps of others.
inline int32_t check_overlap(const std::vector<Extents> &all, size_t results) {
  for (size_t i = 0; i < results; ++i)
    for (size_t j = i + 1; j < all.size(); ++j) {
      const Extents &a = all[i], &b = all[j];
      if (a.begin == a.end || b.begin == b.end || a.begin >= b.end || b.begin >= a.end) continue;
      if (a.first == b.first || a.filled || b.filled)
        return fail(ATTN_MLIR_ERROR_VALUE, "%s overlaps %s in memory: results need memory of their own", a.name, b.name);
    }
  return 0;
}

// Reads a tensor; `order` puts the dimensions of q, k, v, o and their gradients in the order batch, head, position, dim.
inline int32_t read(const DLTensor *given, const char *name, Element element, int rank, const int *order, Tensor &to,
                    bool with_data = true) {
  if (!given) return fail(ATTN_MLIR_ERROR_NULL, "%s is NULL", name);
  ATTN_CHECK(check_device(name, given->device));
  const ElementFacts &wanted = facts(element);
  if (given->dtype.bits != wanted.bytes * 8 || given->dtype.lanes != 1 || given->dtype.code != wanted.code)
    return fail(ATTN_MLIR_ERROR_DTYPE, "%s must be %s; its DLDataType is code %d, %d bits, %d lanes", name, wanted.name,
                int(given->dtype.code), int(given->dtype.bits), int(given->dtype.lanes));
  if (given->ndim != rank) return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have %d dimensions, it has %d", name, rank, int(given->ndim));
  if (rank > 0 && !given->shape) return fail(ATTN_MLIR_ERROR_NULL, "the shape of %s is NULL", name);
  Tensor plain;
  plain.element = element;
  plain.rank = rank;
  for (int i = 0; i < rank; ++i) {
    plain.shape[i] = given->shape[i];
    if (plain.shape[i] < 0 || plain.shape[i] >= int64_t(1) << 31)
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s has size %lld in dimension %d", name, (long long)plain.shape[i], i);
  }
  __int128 count = wanted.bytes, reach = 0, step = wanted.bytes;
  for (int i = 0; i < rank; ++i) {
    count *= plain.shape[i], step *= plain.shape[i] > 0 ? plain.shape[i] : 1;
    // Sizes beside a 0 count, too: strides are made of them.
    if (step > INT64_MAX / 64) return fail(ATTN_MLIR_ERROR_SHAPE, "%s has more elements than memory can hold", name);
  }
  plain.set_dense_strides();
  if (given->strides)
    for (int i = 0; i < rank; ++i) {
      plain.strides[i] = given->strides[i];
      int64_t stride = plain.strides[i];
      reach += __int128(stride < 0 ? -__int128(stride) : stride) * (count && plain.shape[i] > 0 ? plain.shape[i] - 1 : 0) * wanted.bytes;
      if (reach > INT64_MAX / 64)
        return fail(ATTN_MLIR_ERROR_STRIDES, "stride %lld of %s reaches beyond all memory", (long long)stride, name);
    }
  plain.data = with_data ? static_cast<char *>(given->data) : nullptr;
  if (with_data && !plain.data && plain.count() > 0) return fail(ATTN_MLIR_ERROR_NULL, "the data of %s is NULL", name);
  if (plain.data) plain.data += given->byte_offset;
  if (reinterpret_cast<uintptr_t>(plain.data) % uintptr_t(wanted.bytes))
    return fail(ATTN_MLIR_ERROR_STRIDES, "the address of %s is no multiple of %d bytes", name, int(wanted.bytes));
  to = plain;
  if (!order) return 0;
  for (int i = 0; i < 4; ++i) to.shape[i] = plain.shape[order[i]], to.strides[i] = plain.strides[order[i]];
  if (to.shape[3] > 1 && to.strides[3] != 1)
    return fail(ATTN_MLIR_ERROR_STRIDES, "the elements of a head must lie side by side: stride %lld of the head dimension of %s is not 1",
                (long long)to.strides[3], name);
  return 0;
}

// The order of an argument's dimensions, or of its gradient's; null: that in which they are given.
inline const int *order_of(const Library &lib, int position) {
  return position < 3 || lib.arguments[position].like >= 0 ? lib.input_order : nullptr;
}

inline size_t made_results(const Library &lib) { return size_t(lib.row_count + 1); }

// Checks that a result has the shape that it must have.
inline int32_t check_shape(const char *name, const Tensor &given, const Tensor &wanted, const int *order) {
  for (int i = 0; i < wanted.rank; ++i)
    if (given.shape[i] != wanted.shape[i])
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have size %lld in dimension %d, it has %lld", name, (long long)wanted.shape[i],
                  order ? order[i] : i, (long long)given.shape[i]);
  return 0;
}

inline int32_t number(const Argument &argument, const Given &given, Value &to) {
  double real = given.real;
  to.tensor.element = argument.element;
  if (argument.kind == INTEGER) {
    to.word = given.integer;
    if (argument.nonzero && to.word == 0) return fail(ATTN_MLIR_ERROR_VALUE, "%s is 0, and a function divides by it", argument.name);
    return 0;
  }
  if (argument.kind == DROP || argument.kind == KEEP_SCALE) {
    if (!(real >= 0 && real <= 1)) return fail(ATTN_MLIR_ERROR_VALUE, "%s must lie between 0 and 1, it is %g", argument.name, real);
    if (argument.kind == DROP) {
      double drop = std::nearbyint(real * 4294967296.0);
      to.word = drop < 4294967295.0 ? int64_t(drop) : 4294967295;
      return 0;
    }
    real = real == 1 ? 0 : 1 / (1 - real);
  }
  if (argument.nonzero && (argument.element == F64 ? real == 0 : float(real) == 0)) return fail(ATTN_MLIR_ERROR_VALUE, "%s is 0, and a function divides by it", argument.name);
  float single = float(real);
  if (argument.element == F64) std::memcpy(&to.word, &real, 8);
  else std::memcpy(&to.word, &single, 4);
  return 0;
}

// Reads q, k, v and what is captured, and finds the sizes of the problem.
inline int32_t read_inputs(const Library &lib, const Given *given, std::vector<Value> &values, int64_t *sizes, bool with_data = true) {
  values.assign(size_t(lib.argument_count), Value());
  for (int i = 0; i < lib.argument_count; ++i) {
    const Argument &argument = lib.arguments[i];
    Value &value = values[size_t(i)];
    if (argument.kind != TENSOR) {
      ATTN_CHECK(number(argument, given[i], value));
      continue;
    }
    value.is_tensor = true;
    const int *order = order_of(lib, i);
    ATTN_CHECK(read(given[i].tensor, argument.name, argument.element, argument.rank, order, value.tensor, with_data));
    for (int d = 0; d < argument.rank; ++d)
      if (argument.shape[d] >= 0 && argument.shape[d] != value.tensor.shape[d])
        return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have size %lld in dimension %d, it has %lld", argument.name,
                    (long long)argument.shape[d], order ? order[d] : d, (long long)value.tensor.shape[d]);
  }
  const int64_t *q = values[0].tensor.shape, *k = values[1].tensor.shape, *v = values[2].tensor.shape;
  const int64_t found[] = {q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
  std::memcpy(sizes, found, sizeof found);
  if (k[0] != q[0] || v[0] != q[0])
    return fail(ATTN_MLIR_ERROR_SHAPE, "the batch sizes of q, k and v differ: %lld, %lld, %lld", (long long)q[0], (long long)k[0],
                (long long)v[0]);
  if (v[1] != k[1]) return fail(ATTN_MLIR_ERROR_SHAPE, "v has %lld heads but k has %lld", (long long)v[1], (long long)k[1]);
  if (v[2] != k[2]) return fail(ATTN_MLIR_ERROR_SHAPE, "v has %lld positions but k has %lld", (long long)v[2], (long long)k[2]);
  if (k[1] ? q[1] % k[1] : q[1])
    return fail(ATTN_MLIR_ERROR_SHAPE, "q has %lld heads, which is no multiple of the %lld heads of k and v", (long long)q[1],
                (long long)k[1]);
  for (int i = 3; i < lib.argument_count; ++i)
    for (int d = 0; lib.arguments[i].like >= 0 && d < 3; ++d) {
      int64_t wanted = values[size_t(lib.arguments[i].like)].tensor.shape[d], size = values[size_t(i)].tensor.shape[d];
      if (size != wanted)
        return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have size %lld in dimension %d, as %c has, it has %lld", lib.arguments[i].name,
                    (long long)wanted, lib.input_order[d], "qk"[lib.arguments[i].like], (long long)size);
    }
  for (int i = 0; i < lib.extent_count; ++i) {
    const Extent &extent = lib.extents[i];
    int64_t size = values[size_t(extent.argument)].tensor.shape[extent.dim];
    if (size < sizes[extent.size])
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s has size %lld in dimension %d, but it is indexed with %s, which runs from 0 to %lld",
                  lib.arguments[extent.argument].name, (long long)size, extent.dim, extent.index, (long long)sizes[extent.size] - 1);
  }
  for (int i = 0; i < 5; ++i)
    if (sizes[i] == 0) return 0;
  if (!with_data) return 0;
  return lib.check_reads(sizes, values.data());
}

}  // namespace attn
