// The calls of a library: what results must be like, which kernels run, the workspace.
namespace attn {

// o and the row outputs, as the user gives them.
inline int32_t read_results(const Library &lib, const char *prefix, const DLTensor *const *given, const int64_t *sizes, Tensor *to,
                            bool written = false) {
  char name[96];
  for (int i = 0; i <= lib.row_count; ++i) {
    std::snprintf(name, sizeof name, "%s%s", prefix, i ? lib.rows[i - 1] : "o");
    const int *order = i ? nullptr : lib.output_order;
    Tensor wanted;
    wanted.rank = i ? 3 : 4;
    const int64_t shape[] = {sizes[B], sizes[HQ], sizes[SQ], sizes[DV]};
    std::memcpy(wanted.shape, shape, sizeof shape);
    if (i && !given[i] && *prefix) {  // no gradient: a zero that takes no memory
      to[i] = wanted;
      to[i].element = lib.score;
      to[i].data = a_zero();
      continue;
    }
    ATTN_CHECK(read(given[i], name, i ? lib.score : lib.element, i ? 3 : 4, order, to[i]));
    ATTN_CHECK(check_shape(name, to[i], wanted, order));
    if (written && !apart(to[i])) return fail(ATTN_MLIR_ERROR_STRIDES, "elements of %s lie over one another: it is a result", name);
    if (i && to[i].shape[2] > 1 && to[i].strides[2] != 1 && !*prefix)
      return fail(ATTN_MLIR_ERROR_STRIDES, "the last stride of %s must be 1", name);
  }
  return 0;
}

// o and the row outputs, or inputs, among what must not overlap.
inline void append(std::vector<Extents> &all, const Library &lib, const char *o, const Tensor *tensors) {
  for (int i = 0; i <= lib.row_count; ++i) all.push_back(extents_of(i ? lib.rows[i - 1] : o, tensors[i]));
}
inline void append(std::vector<Extents> &all, const Library &lib, const std::vector<Value> &values) {
  for (int i = 0; i < lib.argument_count; ++i)
    if (values[size_t(i)].is_tensor) all.push_back(extents_of(lib.arguments[i].name, values[size_t(i)].tensor));
}

inline void fill_empty(Context &c, const Library &lib, const Tensor *rows) {
  for (int i = 0; i < lib.row_count; ++i) fill(c, rows[i], std::strcmp(lib.rows[i], "lse") ? 0.0 : -INFINITY);
}

// What a program returns, without memory.
inline std::vector<Tensor> returned(const Program &program, std::vector<Value> values) {
  values.resize(size_t(program.value_count));
  int next = program.argument_count;
  for (int s = 0; s < program.step_count; ++s)
    for (int i = 0; i < program.steps[s].result_count; ++i, ++next) {
      values[size_t(next)].is_tensor = true;
      values[size_t(next)].tensor = shape_of(program.steps[s].results[i], values.data(), program.steps[s].operands);
    }
  std::vector<Tensor> made;
  for (int r = 0; r < program.return_count; ++r) made.push_back(values[size_t(program.returns[r])].tensor);
  return made;
}

inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline char *aligned(void *p) { return reinterpret_cast<char *>(aligned(size_t(reinterpret_cast<uintptr_t>(p)))); }

// What the backward pass needs of the forward pass besides its results lies in one block. Returns the bytes of it.
inline size_t place_saved(const Library &lib, std::vector<Tensor> &made, const void *saved) {
  size_t used = 0;
  char *base = saved ? aligned(const_cast<void *>(saved)) : nullptr;
  for (size_t i = size_t(lib.row_count + 1); i < made.size(); ++i) {
    made[i].data = base ? base + used : nullptr;
    used += aligned(size_t(made[i].bytes()));
  }
  return used ? used + 64 : 0;
}

template <class Body>
int32_t with_workspace(const Workspace &workspace, const Body &body) {
  Context measured, run;
  measured.measuring = true;
  body(measured);
  size_t needed = measured.arena.used ? measured.arena.used + 64 : 0;
  if (workspace.data && workspace.size < needed)
    return fail(ATTN_MLIR_ERROR_WORKSPACE, "the workspace has %zu bytes, %zu are needed", workspace.size, needed);
  OwnMemory own;
  if (!workspace.data && needed) ATTN_CHECK(own.take(needed));
  if (needed) run.arena.base = aligned(own.data ? own.data : workspace.data);
  run.threads = threads_for(workspace.threads);
  body(run);
  return 0;
}

inline int32_t check_saved(const Library &lib, std::vector<Tensor> &made, const void *saved, size_t size) {
  size_t needed = place_saved(lib, made, saved);
  if (needed && !saved) return fail(ATTN_MLIR_ERROR_NULL, "saved is NULL, %zu bytes are needed", needed);
  if (size < needed) return fail(ATTN_MLIR_ERROR_WORKSPACE, "saved has %zu bytes, %zu are needed", size, needed);
  return 0;
}

inline int32_t forward(const Library &lib, const Given *given, const DLTensor *const *results, const Workspace &workspace) {
  Session session;
  ATTN_CHECK(session.enter(*lib.machine, given[0].tensor, workspace.stream));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_inputs(lib, given, values, sizes));
  std::vector<Tensor> made(size_t(lib.row_count + 1));
  ATTN_CHECK(read_results(lib, "", results, sizes, made.data(), true));
  std::vector<Extents> all;
  append(all, lib, "o", made.data());
  all.push_back(extents_of("workspace", workspace.data, workspace.size));
  append(all, lib, values);
  ATTN_CHECK(check_overlap(all, made.size() + 1));
  bool empty = !(sizes[B] && sizes[HQ] && sizes[SQ] && sizes[SKV]);
  return with_workspace(workspace, [&](Context &c) {
    if (!empty) return run_forward(c, *lib.forward, values, made);
    if (c.measuring) return;
    fill(c, made[0], 0.0);
    fill_empty(c, lib, &made[1]);
  });
}

inline int32_t training(const Library &lib, const Given *given, const DLTensor *const *results, void *saved, size_t saved_size,
                        const Workspace &workspace) {
  Session session;
  ATTN_CHECK(session.enter(*lib.machine, given[0].tensor, workspace.stream));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_inputs(lib, given, values, sizes));
  std::vector<Tensor> made = returned(*lib.training, values);
  ATTN_CHECK(check_saved(lib, made, saved, saved_size));
  ATTN_CHECK(read_results(lib, "", results, sizes, made.data(), true));
  std::vector<Extents> all;
  append(all, lib, "o", made.data());
  all.push_back(extents_of("saved", saved, saved_size));
  all.push_back(extents_of("workspace", workspace.data, workspace.size));
  append(all, lib, values);
  ATTN_CHECK(check_overlap(all, made_results(lib) + 2));
  return with_workspace(workspace, [&](Context &c) {
    std::vector<Value> all = values;
    run_program(c, *lib.training, all, made.data());
    if (!c.measuring && sizes[SKV] == 0) fill_empty(c, lib, &made[1]);
  });
}

// The arguments of the backward program.
inline void append(std::vector<Value> &values, const std::vector<Tensor> &tensors) {
  for (const Tensor &tensor : tensors) {
    values.emplace_back();
    values.back().is_tensor = true;
    values.back().tensor = tensor;
  }
}

inline int32_t backward(const Library &lib, const Given *given, const DLTensor *const *results, const void *saved, size_t saved_size,
                        const DLTensor *const *grads, const DLTensor *const *gradients, const Workspace &workspace) {
  Session session;
  ATTN_CHECK(session.enter(*lib.machine, given[0].tensor, workspace.stream));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_inputs(lib, given, values, sizes));
  std::vector<Tensor> made = returned(*lib.training, values), incoming(size_t(lib.row_count + 1));
  ATTN_CHECK(check_saved(lib, made, saved, saved_size));
  ATTN_CHECK(read_results(lib, "", results, sizes, made.data()));
  ATTN_CHECK(read_results(lib, "d_", grads, sizes, incoming.data()));
  std::vector<Tensor> targets(size_t(lib.gradient_count));
  std::vector<Extents> all;
  std::vector<std::string> names;
  for (int i = 0; i < lib.gradient_count; ++i) names.push_back(std::string("d_") + lib.arguments[lib.gradients[i]].name);
  for (int i = 0; i < lib.gradient_count; ++i) {
    int position = lib.gradients[i];
    const Argument &argument = lib.arguments[position];
    const int *order = order_of(lib, position);
    const char *name = names[size_t(i)].c_str();
    ATTN_CHECK(read(gradients[i], name, argument.element, argument.rank, order, targets[size_t(i)]));
    ATTN_CHECK(check_shape(name, targets[size_t(i)], values[size_t(position)].tensor, order));
    if (!apart(targets[size_t(i)])) return fail(ATTN_MLIR_ERROR_STRIDES, "elements of %s lie over one another: it is a result", name);
    all.push_back(extents_of(names[size_t(i)].c_str(), targets[size_t(i)]));
  }
  all.push_back(extents_of("workspace", workspace.data, workspace.size));
  size_t written = all.size();
  append(all, lib, "o", made.data());
  append(all, lib, "d_o", incoming.data());
  all.push_back(extents_of("saved", saved, saved_size));
  append(all, lib, values);
  ATTN_CHECK(check_overlap(all, written));
  append(values, made);
  append(values, incoming);
  return with_workspace(workspace, [&](Context &c) {
    std::vector<Value> all = values;
    run_program(c, *lib.backward, all, targets.data());
  });
}

// Stands in for a tensor of a caller that only asks for sizes: dense, at an address that every kernel can read and write.
inline Tensor stand_in(Tensor like) {
  like.set_dense_strides();
  like.data = kStandIn;
  return like;
}

inline int32_t sizes_of(const Library &lib, const Given *given, attn_mlir_sizes *to) {
  if (!to) return fail(ATTN_MLIR_ERROR_NULL, "sizes is NULL");
  Session session;
  ATTN_CHECK(session.enter(*lib.machine, nullptr, nullptr));
  std::vector<Value> values;
  int64_t sizes[SIZES];
  ATTN_CHECK(read_inputs(lib, given, values, sizes, false));
  *to = attn_mlir_sizes{};
  for (Value &value : values)
    if (value.is_tensor) value.tensor.data = kStandIn;
  auto measure = [&](auto run) {
    Context c;
    c.measuring = true;
    run(c);
    return c.arena.used ? c.arena.used + 64 : 0;
  };
  std::vector<Tensor> results(size_t(lib.row_count + 1));
  for (int i = 0; i <= lib.row_count; ++i) {
    results[size_t(i)].rank = i ? 3 : 4, results[size_t(i)].element = i ? lib.score : lib.element;
    const int64_t shape[] = {sizes[B], sizes[HQ], sizes[SQ], sizes[DV]};
    std::memcpy(results[size_t(i)].shape, shape, sizeof shape);
    results[size_t(i)] = stand_in(results[size_t(i)]);
  }
  if (lib.forward && sizes[B] && sizes[HQ] && sizes[SQ] && sizes[SKV])
    to->forward_workspace = measure([&](Context &c) { run_forward(c, *lib.forward, values, results); });
  if (!lib.training) return 0;
  std::vector<Tensor> made = returned(*lib.training, values);
  to->saved = place_saved(lib, made, nullptr);
  auto program = [&](const Program &which, std::vector<Value> all, const std::vector<Tensor> &targets) {
    return measure([&](Context &c) { run_program(c, which, all, targets.data()); });
  };
  for (Tensor &each : made) each = stand_in(each);
  to->training_workspace = program(*lib.training, values, made);
  std::vector<Tensor> gradients;
  for (int i = 0; i < lib.gradient_count; ++i) gradients.push_back(stand_in(values[size_t(lib.gradients[i])].tensor));
  append(values, made);
  append(values, std::vector<Tensor>(made.begin(), made.begin() + lib.row_count + 1));
  to->backward_workspace = program(*lib.backward, values, gradients);
  return 0;
}

// Runs a call; what the C++ library throws becomes an error code.
template <class Call>
int32_t guarded(const Call &call) {
  message()[0] = 0;
  try {
    return call();
  } catch (const Failure &failure) {
    return failure.code;
  } catch (const std::bad_alloc &) {
    return fail(ATTN_MLIR_ERROR_MEMORY, "there is no memory left");
  } catch (...) {
    return fail(ATTN_MLIR_ERROR_MEMORY, "the system gives no threads");
  }
}

}  // namespace attn
