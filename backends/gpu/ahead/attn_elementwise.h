// What a library does on a GPU besides its kernels, by those of attn_device.h: copies, sums of two tensors, sums of slots, one value everywhere.
namespace attn {

extern "C" __attribute__((visibility("hidden"))) const char attn_device_code[];
inline Kernel device_kernel(const char *entry) {
  Kernel made{};
  made.entry = entry, made.code = attn_device_code, made.threads = 256, made.cluster = 1, made.block_q = 1, made.semaphore_over = -1;
  return made;
}
inline const Kernel kCopy = device_kernel("attn_copy"), kAdd = device_kernel("attn_add"), kFold = device_kernel("attn_fold"),
                    kFill = device_kernel("attn_fill");

// A tensor, and sizes, as the kernels of attn_device.h take them.
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
  long long count, threads;  // of the whole grid
  int sizes[kDeviceRank];
  explicit Shape(const Tensor &x) : count(x.count()), threads(256 * blocks()) {
    if (x.rank > kDeviceRank) throw Failure{fail(ATTN_MLIR_ERROR_SHAPE, "tensors of %d dimensions cannot be copied here", x.rank)};
    for (int d = 0; d < kDeviceRank; ++d) sizes[d] = d < kDeviceRank - x.rank ? 1 : int(x.shape[d - kDeviceRank + x.rank]);
  }
  int64_t blocks() const { return ceil_div(count, 256) < 1 << 20 ? ceil_div(count, 256) : 1 << 20; }
};
inline void start_elementwise(const Kernel &kernel, const Shape &shape, void **parameters) {
  const int64_t grid[] = {shape.blocks(), 1, 1};
  if (shape.count > 0) start(kernel, grid, parameters);
}

inline void fill(Context &c, const Tensor &to, double value) {
  if (c.measuring) return;
  if (value == 0.0 && to.dense()) return clear(c, to.data, to.bytes());
  Strided target(to);
  Shape shape(to);
  void *parameters[] = {&target, &shape, &value};
  start_elementwise(kFill, shape, parameters);
}
inline void copy(Context &c, const Tensor &from, const Tensor &to) {
  if (c.measuring) return;
  Strided source(from), target(to);
  Shape shape(to);
  void *parameters[] = {&source, &target, &shape};
  start_elementwise(kCopy, shape, parameters);
}
inline void add(Context &c, const Tensor &x, const Tensor &y, const Tensor &to) {
  if (c.measuring) return;
  Strided first(x), second(y), target(to);
  Shape shape(to);
  void *parameters[] = {&first, &second, &target, &shape};
  start_elementwise(kAdd, shape, parameters);
}
inline void fold(Context &c, const Tensor &slot, int64_t slots, const Tensor &to) {
  if (c.measuring) return;
  Strided source(slot), target(to);
  Shape shape(to);
  long long count = slots, step = slot.count();
  void *parameters[] = {&source, &target, &shape, &count, &step};
  start_elementwise(kFold, shape, parameters);
}

}  // namespace attn
