// Kernels on an NVIDIA GPU: how they are loaded and launched, and tensors for the copy engine. States in C++ what
// backends/nvidia/{cuda,launch}.py state in Python.
#define ATTN_COPY_ENGINE

namespace attn {

// The kernel in the context of the call, loaded at its first launch there.
inline CUfunction load(const Kernel &kernel) {
  Loaded &loaded = *active().loaded;
  std::lock_guard<std::mutex> guard(lock());
  CUfunction &function = loaded.functions[&kernel];
  if (function) return function;
  if (kernel.shared_bytes > loaded.shared_bytes)
    throw Failure{fail(ATTN_MLIR_ERROR_PROCESSOR, "the kernel %s needs %d bytes of shared memory, a thread block may have %d on a %s",
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

inline void clear(Context &c, char *data, int64_t bytes) {
  if (!c.measuring && bytes > 0) check(driver().cuMemsetD8Async(CUdeviceptr(uintptr_t(data)), 0, size_t(bytes), active().stream), "clearing memory");
}

// Whether the copy engine reads windows of a tensor in such boxes.
inline bool is_described(const Tensor &x, const Parameter &p) {
  const int64_t bytes = facts(x.element).bytes;
  const int last = x.rank - 1;
  bool fits = p.columns * bytes == p.swizzle && uintptr_t(x.data) % 16 == 0 && (x.strides[last] == 1 || x.shape[last] == 1);
  for (int d = 0; d <= last; ++d) fits = fits && x.shape[d] > 0 && (d == last || x.shape[d] == 1 || x.strides[d] * bytes % 16 == 0);
  return fits;
}
// The last four dimensions of a tensor, or fewer with ones in front, and rows before its columns.
inline Tensor window_of(const Tensor &given, const Parameter &p) {
  Tensor x = given;
  int to = 4, rows = given.rank + p.dim;
  const auto put = [&](int d) { --to, x.shape[to] = d < 0 ? 1 : given.shape[d], x.strides[to] = d < 0 ? 0 : given.strides[d]; };
  put(given.rank - 1), put(rows);
  for (int d = given.rank - 2; to; --d)
    if (d != rows) put(d);
  x.rank = 4;
  return x;
}

inline CUtensorMap map_of(const Tensor &given, const Parameter &p) {
  if (p.kind == WINDOW && !is_described(given, p)) return {};
  Tensor x = p.kind == WINDOW ? window_of(given, p) : given;
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
  uint64_t seen;
  std::memcpy(&seen, &map, 8);
  return p.kind == WINDOW && !seen ? CUtensorMap{} : map;  // kernels look at the beginning
}

}  // namespace attn
