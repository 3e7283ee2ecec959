// The CPU as the machine that a library computes on.
namespace attn {

constexpr const char *kMachine = "the CPU";
// Where tensors lie whose sizes alone count: nowhere, so that results of any strides have enough memory.
constexpr char *kStandIn = nullptr;

// What the library was made for: `lacking` tells an instruction set that this processor lacks, or null.
struct Machine {
  const char *(*lacking)();
};

struct Session {
  int32_t enter(const Machine &machine, const DLTensor *, void *) {
    if (const char *lacking = machine.lacking())
      return fail(ATTN_MLIR_ERROR_PROCESSOR, "this processor has no %s, for which the library was made: make it on this machine", lacking);
    return 0;
  }
};

inline bool is_own(DLDevice device) {
  int32_t type = device.device_type;
  return type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost;
}
inline int32_t check_device(const char *name, DLDevice device) {
  if (is_own(device)) return 0;
  return fail(ATTN_MLIR_ERROR_DEVICE, "%s is on device type %d, this library reads the memory of the CPU (kDLCPU)", name,
              int(device.device_type));
}

// Memory of the system for one call.
struct OwnMemory {
  void *data = nullptr;
  OwnMemory() = default;
  OwnMemory(const OwnMemory &) = delete;
  ~OwnMemory() { std::free(data); }
  int32_t take(size_t bytes) {
    if ((data = std::malloc(bytes))) return 0;
    return fail(ATTN_MLIR_ERROR_MEMORY, "there is no memory for a workspace of %zu bytes", bytes);
  }
};

inline char *a_zero() {
  static double zero = 0;
  return reinterpret_cast<char *>(&zero);
}
inline Tensor on_host(const Tensor &x, std::vector<char> &) { return x; }
inline bool trusts_elements() { return false; }
inline void *stream_of(const DLTensor *) { return nullptr; }
inline void fill(Context &c, const Tensor &to, double value) {
  if (!c.measuring) fill(to, value, c.threads);
}
inline void copy(Context &c, const Tensor &from, const Tensor &to) {
  if (!c.measuring) copy(from, to, c.threads);
}
inline void add(Context &c, const Tensor &x, const Tensor &y, const Tensor &to) {
  if (!c.measuring) add(x, y, to, c.threads);
}

}  // namespace attn
