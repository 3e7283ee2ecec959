// An AMD GPU as the machine that a library computes on: the HIP runtime, which is looked for at the first call, so that the library loads where
// there is none; devices, with the kernels loaded onto each; memory of a call. States in C++ what backends/amd/hip.py states in Python.
namespace attn {

// What is used of <hip/hip_runtime_api.h>.
using hipError_t = int;
using hipModule_t = void *;
using hipFunction_t = void *;
using hipStream_t = void *;
enum : int { kNoCodeForDevice = 209, kRelaxed = 2 };

#define ATTN_HIP_FUNCTIONS(X)                                                                                                      \
  X(hipInit, unsigned)                                                                                                             \
  X(hipGetDevice, int *)                                                                                                           \
  X(hipSetDevice, int)                                                                                                             \
  X(hipDeviceGetName, char *, int, int)                                                                                            \
  X(hipStreamGetDevice, hipStream_t, int *)                                                                                        \
  X(hipStreamIsCapturing, hipStream_t, int *)                                                                                      \
  X(hipStreamSynchronize, hipStream_t)                                                                                             \
  X(hipThreadExchangeStreamCaptureMode, int *)                                                                                     \
  X(hipModuleLoadData, hipModule_t *, const void *)                                                                                \
  X(hipModuleGetFunction, hipFunction_t *, hipModule_t, const char *)                                                              \
  X(hipModuleLaunchKernel, hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t,       \
    void **, void **)                                                                                                              \
  X(hipMalloc, void **, size_t)                                                                                                    \
  X(hipMallocAsync, void **, size_t, hipStream_t)                                                                                  \
  X(hipFreeAsync, void *, hipStream_t)                                                                                             \
  X(hipMemset, void *, int, size_t)                                                                                                \
  X(hipMemsetAsync, void *, int, size_t, hipStream_t)                                                                              \
  X(hipMemcpyDtoHAsync, void *, void *, size_t, hipStream_t)

struct Runtime {
#define ATTN_DECLARE(name, ...) hipError_t (*name)(__VA_ARGS__) = nullptr;
  ATTN_HIP_FUNCTIONS(ATTN_DECLARE)
#undef ATTN_DECLARE
  const char *(*hipGetErrorName)(hipError_t) = nullptr;
  const char *(*hipGetErrorString)(hipError_t) = nullptr;
  char missing[160] = "";

  Runtime() {
    void *library = nullptr;
    // That of the process, such as the one that comes with torch, before any other: they do not share streams and memory.
    for (int flag : {RTLD_NOLOAD, 0})
      for (const char *name : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"})
        if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flag);
    if (!library) {
      std::snprintf(missing, sizeof missing, "this machine has no HIP runtime (libamdhip64.so): install ROCm");
      return;
    }
#define ATTN_FIND(name, ...) find(library, #name, name);
    ATTN_HIP_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
    find(library, "hipGetErrorName", hipGetErrorName), find(library, "hipGetErrorString", hipGetErrorString);
  }

 private:
  template <class Function>
  void find(void *library, const char *name, Function &to) {
    to = reinterpret_cast<Function>(dlsym(library, name));
    if (!to && !missing[0]) std::snprintf(missing, sizeof missing, "the HIP runtime is too old: it has no %s (ROCm 5.6 or newer has)", name);
  }
};

inline const Runtime &runtime() {
  static const Runtime found;
  return found;
}

// Tells what the runtime said of a call that did `what`.
inline int32_t driver_error(hipError_t result, const char *what) {
  const char *name = runtime().hipGetErrorName(result), *text = runtime().hipGetErrorString(result);
  return fail(ATTN_MLIR_ERROR_DRIVER, "%s: %s (%d): %s", what, name ? name : "an unknown error", int(result), text ? text : "");
}
inline void check(hipError_t result, const char *what) {
  if (result) throw Failure{driver_error(result, what)};
}

constexpr const char *kMachine = "a ROCm device";
// How far apart rows may be, in bytes: kernels count in 32 bits inside of a block of 128.
constexpr int64_t kRowBytes = (int64_t(1) << 31) / 128;

// The architecture that the library was made for.
struct Machine {
  const char *arch;
};

// What this library keeps on a device.
struct Loaded {
  char *zero = nullptr;
  std::map<const char *, hipModule_t> modules;  // by their code
  std::map<const Kernel *, hipFunction_t> functions;
};

// Calls that a graph under capture would forbid, such as loading code, are allowed while one of these lives.
struct Relaxed {
  int mode = kRelaxed;
  Relaxed() { check(runtime().hipThreadExchangeStreamCaptureMode(&mode), "relaxing the capture of a graph"); }
  Relaxed(const Relaxed &) = delete;
  ~Relaxed() { runtime().hipThreadExchangeStreamCaptureMode(&mode); }
};

// The device and stream of the call that this thread is in.
struct Active {
  Loaded *loaded = nullptr;
  const Machine *machine = nullptr;
  hipStream_t stream = nullptr;
  int32_t device = 0;
};
inline Active &active() {
  static thread_local Active one;
  return one;
}

inline bool is_own(DLDevice device) {
  return device.device_type == kDLROCM && (!active().loaded || device.device_id == active().device);
}
inline int32_t check_device(const char *name, DLDevice device) {
  if (is_own(device)) return 0;
  if (device.device_type == kDLROCM)
    return fail(ATTN_MLIR_ERROR_DEVICE, "%s is on ROCm device %d, but q is on %d", name, int(device.device_id), int(active().device));
  return fail(ATTN_MLIR_ERROR_DEVICE, "%s is on device type %d, this library reads the memory of ROCm devices (kDLROCM)", name,
              int(device.device_type));
}

// Code on the device of the call, loaded at its first use there. Throws where it is for another architecture.
inline hipModule_t module_of(const char *code) {
  hipModule_t &module = active().loaded->modules[code];
  if (module) return module;
  Relaxed relaxed;
  hipModule_t made = nullptr;
  hipError_t result = runtime().hipModuleLoadData(&made, code);
  if (result == kNoCodeForDevice) {
    char name[96] = "";
    check(runtime().hipDeviceGetName(name, int(sizeof name) - 1, active().device), "asking for the name of the device");
    throw Failure{fail(ATTN_MLIR_ERROR_PROCESSOR, "device %d, a %s, runs no code for %s, for which the library was made",
                       int(active().device), name, active().machine->arch)};
  }
  check(result, "loading a kernel");
  return module = made;
}

extern "C" __attribute__((visibility("hidden"))) const char attn_device_code[];

// A call: the device of q is the thread's as long as this lives.
class Session {
 public:
  Session() = default;
  Session(const Session &) = delete;
  ~Session() {
    active() = Active();
    if (old_ >= 0) runtime().hipSetDevice(old_);
  }

  // Without q only sizes are asked for, which takes no runtime.
  int32_t enter(const Machine &machine, const DLTensor *q, hipStream_t stream) {
    if (!q) return 0;
    ATTN_CHECK(check_device("q", q->device));
    if (runtime().missing[0]) return fail(ATTN_MLIR_ERROR_DRIVER, "%s", runtime().missing);
    check(runtime().hipInit(0), "starting the HIP runtime");
    int device = int(q->device.device_id), current = -1, own = -1;
    if (uintptr_t(stream) > 2) {  // 0, 1 and 2 are the default streams of whatever device is current
      check(runtime().hipStreamGetDevice(stream, &own), "asking for the device of the stream");
      if (own != device) return fail(ATTN_MLIR_ERROR_DEVICE, "the stream is of another device than q, which is on %d", device);
    }
    check(runtime().hipGetDevice(&current), "asking for the device of the thread");
    if (current != device) {
      check(runtime().hipSetDevice(device), "taking the device of q");
      old_ = current;
    }
    static std::map<int, Loaded> all;
    std::lock_guard<std::mutex> guard(lock());
    Active &now = active();
    now.loaded = &all[device], now.machine = &machine, now.stream = stream, now.device = device;
    module_of(attn_device_code);
    if (!now.loaded->zero) {
      Relaxed relaxed;
      void *zero = nullptr;
      check(runtime().hipMalloc(&zero, 64), "taking memory");
      check(runtime().hipMemset(zero, 0, 64), "clearing memory");
      now.loaded->zero = static_cast<char *>(zero);
    }
    return 0;
  }

 private:
  int old_ = -1;
};

// What attn_memory.h does with memory, in the order of the stream of the call.
inline hipError_t take_memory(void **data, size_t bytes) { return runtime().hipMallocAsync(data, bytes, active().stream); }
inline void give_memory(void *data) { runtime().hipFreeAsync(data, active().stream); }
inline hipError_t read_memory(char *to, char *from, size_t bytes) { return runtime().hipMemcpyDtoHAsync(to, from, bytes, active().stream); }
inline hipError_t wait_for_stream() { return runtime().hipStreamSynchronize(active().stream); }
inline hipError_t capture_status(int *status) { return runtime().hipStreamIsCapturing(active().stream, status); }

// The kernel on the device of the call, loaded at its first launch there.
inline hipFunction_t load(const Kernel &kernel) {
  std::lock_guard<std::mutex> guard(lock());
  hipFunction_t &function = active().loaded->functions[&kernel];
  if (function) return function;
  hipModule_t module = module_of(kernel.code);
  Relaxed relaxed;
  hipFunction_t found = nullptr;
  check(runtime().hipModuleGetFunction(&found, module, kernel.entry), "looking for a kernel");
  return function = found;
}

inline void start(const Kernel &kernel, const int64_t grid[3], void **parameters) {
  char what[128];
  std::snprintf(what, sizeof what, "launching %s", kernel.entry);
  unsigned sizes[] = {unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2]), unsigned(kernel.threads)};
  // No shared memory beyond what the code declares.
  check(runtime().hipModuleLaunchKernel(load(kernel), sizes[0], sizes[1], sizes[2], sizes[3], 1, 1, 0, active().stream, parameters, nullptr), what);
}

inline void clear(Context &c, char *data, int64_t bytes) {
  if (!c.measuring && bytes > 0) check(runtime().hipMemsetAsync(data, 0, size_t(bytes), active().stream), "clearing memory");
}

}  // namespace attn
