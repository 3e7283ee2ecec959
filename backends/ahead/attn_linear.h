// The calls of a library of a linear attention; see attn_call.h.
namespace attn {

struct LinearLibrary {
  Library base;
  const Program *program;
  int decay, initial_state, cu_seqlens;  // which arguments these are, or -1
  bool turned;                           // the decay has positions before heads
  bool q_by_head, k_by_head;             // they need as many heads as v has
  const int *columns;                    // of each argument: how many, side by side in memory, or -1
  int state_gradient;                    // which gradient is that of the initial state, or -1
};

inline void turn(Tensor &x) {
  if (x.rank < 3) return;
  std::swap(x.shape[1], x.shape[2]);
  std::swap(x.strides[1], x.strides[2]);
}

inline int64_t sequences_of(const LinearLibrary &lib, const std::vector<Value> &values) {
  return lib.cu_seqlens < 0 ? values[0].tensor.shape[0] : values[size_t(lib.cu_seqlens)].tensor.shape[0] - 1;
}

// Where sequences begin must not decrease, and go from 0 to the number of positions: kernels trust it.
inline int32_t check_offsets(const LinearLibrary &lib, const std::vector<Value> &values, const int64_t *sizes) {
  if (trusts_elements()) return 0;
  const char *name = lib.base.arguments[lib.cu_seqlens].name;
  std::vector<char> fetched;
  Tensor offsets = on_host(values[size_t(lib.cu_seqlens)].tensor, fetched);
  int64_t width = facts(offsets.element).bytes, last = 0;
  for (int64_t i = 0; i < offsets.shape[0]; ++i) {
    int64_t place = load_integer(offsets.data + i * offsets.strides[0] * width, offsets.element);
    if (i == 0 && place != 0) return fail(ATTN_MLIR_ERROR_VALUE, "%s must start at 0, it starts at %lld", name, (long long)place);
    if (place < last) return fail(ATTN_MLIR_ERROR_VALUE, "%s must not decrease, %lld follows %lld", name, (long long)place, (long long)last);
    last = place;
  }
  if (last == sizes[SQ]) return 0;
  return fail(ATTN_MLIR_ERROR_VALUE, "%s must end at the number of positions, %lld; it ends at %lld", name, (long long)sizes[SQ],
              (long long)last);
}

// Compares the sizes of an input with those that it must have; -1: any.
inline int32_t check_sizes(const char *name, const Tensor &x, const std::vector<int64_t> &wanted) {
  for (int d = 0; d < x.rank; ++d)
    if (wanted[size_t(d)] >= 0 && x.shape[d] != wanted[size_t(d)])
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have size %lld where it has %lld: see the header", name, (long long)wanted[size_t(d)],
                  (long long)x.shape[d]);
  return 0;
}

inline int32_t read_linear(const LinearLibrary &lib, const Given *given, std::vector<Value> &values, int64_t *sizes, bool with_data = true) {
  const Library &base = lib.base;
  values.assign(size_t(base.argument_count), Value());
  for (int i = 0; i < base.argument_count; ++i) {
    const Argument &argument = base.arguments[i];
    Value &value = values[size_t(i)];
    if (argument.kind != TENSOR) {
      ATTN_CHECK(number(argument, given[i], value));
      continue;
    }
    value.is_tensor = true;
    Tensor &x = value.tensor;
    ATTN_CHECK(read(given[i].tensor, argument.name, argument.element, argument.rank, i < 3 ? base.input_order : nullptr, x, with_data));
    if (i == lib.decay && lib.turned) turn(x);
    if (lib.columns[i] < 0) continue;
    int last = argument.rank - 1;
    if (x.shape[last] != lib.columns[i])
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s must have %d columns, it has %lld", argument.name, lib.columns[i], (long long)x.shape[last]);
    if (x.shape[last] > 1 && x.strides[last] != 1)
      return fail(ATTN_MLIR_ERROR_STRIDES, "the last stride of %s must be 1, it is %lld", argument.name, (long long)x.strides[last]);
  }
  const int64_t *q = values[0].tensor.shape, *k = values[1].tensor.shape, *v = values[2].tensor.shape;
  const int64_t found[] = {q[0], q[1], k[1], q[2], k[2], q[3], v[3], v[1]};
  std::memcpy(sizes, found, sizeof found);
  ATTN_CHECK(check_sizes("k", values[1].tensor, {q[0], lib.k_by_head ? v[1] : -1, q[2], q[3]}));
  ATTN_CHECK(check_sizes("v", values[2].tensor, {q[0], -1, q[2], -1}));
  ATTN_CHECK(check_sizes("q", values[0].tensor, {-1, lib.q_by_head ? v[1] : -1, -1, -1}));
  for (int i = 0; i < 2; ++i)
    if (int64_t heads = values[size_t(i)].tensor.shape[1]; heads ? v[1] % heads : v[1])
      return fail(ATTN_MLIR_ERROR_SHAPE, "v has %lld heads, which is no multiple of the %lld heads of %s", (long long)v[1], (long long)heads,
                  i ? "k" : "q");
  if (lib.decay >= 0) {
    const Tensor &decay = values[size_t(lib.decay)].tensor;
    std::vector<int64_t> wanted = {v[1], q[3]};
    if (decay.rank >= 3) wanted = {q[0], v[1], q[2], q[3]};
    ATTN_CHECK(check_sizes(base.arguments[lib.decay].name, decay, wanted));
  }
  if (lib.cu_seqlens >= 0) {
    if (q[0] != 1) return fail(ATTN_MLIR_ERROR_SHAPE, "all sequences are in one, of batch size 1, but the batch size is %lld", (long long)q[0]);
    if (values[size_t(lib.cu_seqlens)].tensor.shape[0] < 2)
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s has no sequence", base.arguments[lib.cu_seqlens].name);
    if (with_data) ATTN_CHECK(check_offsets(lib, values, sizes));
  }
  if (lib.initial_state >= 0)
    ATTN_CHECK(check_sizes(base.arguments[lib.initial_state].name, values[size_t(lib.initial_state)].tensor,
                           {sequences_of(lib, values), v[1], q[3], v[3]}));
  for (int i = 0; i < base.extent_count; ++i) {
    const Extent &extent = base.extents[i];
    int64_t size = values[size_t(extent.argument)].tensor.shape[extent.dim];
    if (size < sizes[extent.size])
      return fail(ATTN_MLIR_ERROR_SHAPE, "%s has size %lld in dimension %d, but it is indexed with %s, which runs from 0 to %lld",
                  base.arguments[extent.argument].name, (long long)size, extent.dim, extent.index, (long long)sizes[extent.size] - 1);
  }
  for (int64_t size : {sizes[B], sizes[HQ], sizes[HKV], sizes[SQ], sizes[HV]})
    if (size == 0) return 0;
  return with_data ? base.check_reads(sizes, values.data()) : 0;
}

// o and the final state, or their gradients.
inline int32_t read_linear_results(const LinearLibrary &lib, const std::vector<Value> &values, const char *prefix, const DLTensor *const *given,
                                   const int64_t *sizes, Tensor *to, bool written) {
  char name[96];
  for (int i = 0; i <= lib.base.row_count; ++i) {
    std::snprintf(name, sizeof name, "%s%s", prefix, i ? lib.base.rows[i - 1] : "o");
    Tensor wanted;
    wanted.rank = 4, wanted.element = i ? lib.base.score : lib.base.element;
    const int64_t shape[] = {i ? sequences_of(lib, values) : sizes[B], sizes[HV], i ? sizes[D] : sizes[SQ], sizes[DV]};
    std::memcpy(wanted.shape, shape, sizeof shape);
    if (!given) {
      to[i] = wanted;
      to[i].set_dense_strides(), to[i].data = kStandIn;
      continue;
    }
    if (i && !given[i] && *prefix) {  // no gradient: zeros of `with_zeros`
      to[i] = wanted;
      continue;
    }
    const int *order = i ? nullptr : lib.base.output_order;
    ATTN_CHECK(read(given[i], name, wanted.element, 4, order, to[i]));
    ATTN_CHECK(check_shape(name, to[i], wanted, order));
    if (i && to[i].shape[3] > 1 && to[i].strides[3] != 1) return fail(ATTN_MLIR_ERROR_STRIDES, "the last stride of %s must be 1", name);
    if (written && !apart(to[i])) return fail(ATTN_MLIR_ERROR_STRIDES, "elements of %s lie over one another: it is a result", name);
  }
  return 0;
}

// The same arguments of the backward program, with zeros in the memory of the call for what is not there.
inline std::vector<Value> with_zeros(Context &c, std::vector<Value> values, std::vector<Tensor> incoming) {
  for (Tensor &each : incoming) {
    if (each.data) continue;
    each = new_tensor(c, each);
    fill(c, each, 0.0);
  }
  append(values, incoming);  // in place of the results, which the program does not read
  append(values, incoming);
  return values;
}

inline bool is_empty(const int64_t *sizes) { return !(sizes[B] && sizes[HQ] && sizes[SQ] && sizes[HV]); }

inline int32_t linear_forward(const LinearLibrary &lib, const Given *given, const DLTensor *const *results, const Workspace &workspace) {
  Session session;
  ATTN_CHECK(session.enter(*lib.base.machine, given[0].tensor, workspace.stream));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_linear(lib, given, values, sizes));
  std::vector<Tensor> made(size_t(lib.base.row_count + 1));
  ATTN_CHECK(read_linear_results(lib, values, "", results, sizes, made.data(), true));
  std::vector<Extents> all;
  append(all, lib.base, "o", made.data());
  all.push_back(extents_of("workspace", workspace.data, workspace.size));
  append(all, lib.base, values);
  ATTN_CHECK(check_overlap(all, made.size() + 1));
  return with_workspace(workspace, [&](Context &c) {
    std::vector<Value> mine = values;
    if (!is_empty(sizes)) return run_program(c, *lib.program, mine, made.data());
    for (Tensor &each : made) fill(c, each, 0.0);
    // Without positions the state does not change.
    if (lib.base.row_count && lib.initial_state >= 0) copy(c, values[size_t(lib.initial_state)].tensor, made[1]);
  });
}

inline int32_t linear_backward(const LinearLibrary &lib, const Given *given, const DLTensor *const *grads, const DLTensor *const *gradients,
                               const Workspace &workspace) {
  const Library &base = lib.base;
  Session session;
  ATTN_CHECK(session.enter(*base.machine, given[0].tensor, workspace.stream));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_linear(lib, given, values, sizes));
  std::vector<Tensor> incoming(size_t(base.row_count + 1)), targets(size_t(base.gradient_count));
  ATTN_CHECK(read_linear_results(lib, values, "d_", grads, sizes, incoming.data(), false));
  std::vector<Extents> all;
  std::vector<std::string> names;
  for (int i = 0; i < base.gradient_count; ++i) names.push_back(std::string("d_") + base.arguments[base.gradients[i]].name);
  for (int i = 0; i < base.gradient_count; ++i) {
    int position = base.gradients[i];
    const Argument &argument = base.arguments[position];
    const char *name = names[size_t(i)].c_str();
    Tensor &target = targets[size_t(i)];
    ATTN_CHECK(read(gradients[i], name, argument.element, argument.rank, position < 3 ? base.input_order : nullptr, target));
    if (position == lib.decay && lib.turned) turn(target);
    ATTN_CHECK(check_shape(name, target, values[size_t(position)].tensor, nullptr));
    if (!apart(target)) return fail(ATTN_MLIR_ERROR_STRIDES, "elements of %s lie over one another: it is a result", name);
    all.push_back(extents_of(name, target));
  }
  all.push_back(extents_of("workspace", workspace.data, workspace.size));
  size_t written = all.size();
  append(all, base, "d_o", incoming.data());
  append(all, base, values);
  ATTN_CHECK(check_overlap(all, written));
  return with_workspace(workspace, [&](Context &c) {
    if (!is_empty(sizes)) {
      std::vector<Value> mine = with_zeros(c, values, incoming);
      return run_program(c, *base.backward, mine, targets.data());
    }
    for (Tensor &each : targets) fill(c, each, 0.0);
    if (base.row_count && lib.state_gradient >= 0 && incoming.back().data)
      copy(c, incoming.back(), targets[size_t(lib.state_gradient)]);
  });
}

inline int32_t linear_sizes(const LinearLibrary &lib, const Given *given, attn_mlir_sizes *to) {
  const Library &base = lib.base;
  if (!to) return fail(ATTN_MLIR_ERROR_NULL, "sizes is NULL");
  Session session;
  ATTN_CHECK(session.enter(*base.machine, nullptr, nullptr));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_linear(lib, given, values, sizes, false));
  *to = attn_mlir_sizes{};
  if (is_empty(sizes)) return 0;
  for (Value &value : values)
    if (value.is_tensor) value.tensor.data = kStandIn;
  auto measure = [&](const Program &program, const std::vector<Tensor> *incoming, const std::vector<Tensor> &targets) {
    Context c;
    c.measuring = true;
    std::vector<Value> all = incoming ? with_zeros(c, values, *incoming) : values;
    run_program(c, program, all, targets.data());
    return c.arena.used ? c.arena.used + 64 : 0;
  };
  std::vector<Tensor> results(size_t(base.row_count + 1)), gradients;
  ATTN_CHECK(read_linear_results(lib, values, "", nullptr, sizes, results.data(), false));
  to->forward_workspace = measure(*lib.program, nullptr, results);
  if (!base.backward) return 0;
  for (int i = 0; i < base.gradient_count; ++i) gradients.push_back(stand_in(values[size_t(base.gradients[i])].tensor));
  for (int i = 1; i <= base.row_count; ++i) results[size_t(i)].data = nullptr;
  to->backward_workspace = measure(*base.backward, &results, gradients);
  return 0;
}

}  // namespace attn
