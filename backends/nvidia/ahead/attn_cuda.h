// An NVIDIA GPU as the machine that a library computes on: the driver, which is looked for at the first call, so that the library loads where
// there is none; contexts, with the kernels loaded into each; memory of a call. States in C++ what backends/nvidia/cuda.py states in Python.
namespace attn {

// What is used of <cuda.h>.
using CUresult = int;
using CUdevice = int;
using CUcontext = void *;
using CUmodule = void *;
using CUfunction = void *;
using CUstream = void *;
using CUdeviceptr = unsigned long long;
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char all[64];
    unsigned cluster[3];
  } value;
};
struct CUlaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  CUlaunchAttribute *attributes;
  unsigned count;
};
struct alignas(128) CUtensorMap {
  char bytes[128];
};
enum : int { kMultiprocessors = 16, kSharedBytes = 97, kMajor = 75, kMinor = 76, kDynamicShared = 8, kCluster = 4, kRelaxed = 2 };

#define ATTN_CUDA_FUNCTIONS(X)                                                                                                     \
  X(cuInit, unsigned)                                                                                                              \
  X(cuDeviceGet, CUdevice *, int)                                                                                                  \
  X(cuDeviceGetAttribute, int *, int, CUdevice)                                                                                    \
  X(cuDeviceGetName, char *, int, CUdevice)                                                                                        \
  X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                                               \
  X(cuCtxGetCurrent, CUcontext *)                                                                                                  \
  X(cuCtxGetDevice, CUdevice *)                                                                                                    \
  X(cuCtxPushCurrent_v2, CUcontext)                                                                                                \
  X(cuCtxPopCurrent_v2, CUcontext *)                                                                                               \
  X(cuStreamGetCtx, CUstream, CUcontext *)                                                                                         \
  X(cuStreamIsCapturing, CUstream, int *)                                                                                          \
  X(cuStreamSynchronize, CUstream)                                                                                                 \
  X(cuThreadExchangeStreamCaptureMode, int *)                                                                                      \
  X(cuModuleLoadData, CUmodule *, const void *)                                                                                    \
  X(cuModuleGetFunction, CUfunction *, CUmodule, const char *)                                                                     \
  X(cuFuncSetAttribute, CUfunction, int, int)                                                                                      \
  X(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **)                                                        \
  X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                                                          \
  X(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream)                                                                              \
  X(cuMemFreeAsync, CUdeviceptr, CUstream)                                                                                         \
  X(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)                                                                             \
  X(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream)                                                                 \
  X(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)                                                                   \
  X(cuTensorMapEncodeTiled, CUtensorMap *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,            \
    const uint32_t *, int, int, int, int)                                                                                          \
  X(cuGetErrorName, CUresult, const char **)                                                                                       \
  X(cuGetErrorString, CUresult, const char **)

struct Driver {
#define ATTN_DECLARE(name, ...) CUresult (*name)(__VA_ARGS__) = nullptr;
  ATTN_CUDA_FUNCTIONS(ATTN_DECLARE)
#undef ATTN_DECLARE
  char missing[160] = "";

  Driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      std::snprintf(missing, sizeof missing, "this machine has no NVIDIA driver (libcuda.so.1)");
      return;
    }
#define ATTN_FIND(name, ...)                                                                \
  name = reinterpret_cast<CUresult (*)(__VA_ARGS__)>(dlsym(library, #name));                \
  if (!name && !missing[0]) std::snprintf(missing, sizeof missing, "the NVIDIA driver is too old: it has no %s (CUDA 12.0 or newer has)", #name);
    ATTN_CUDA_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  }
};

inline const Driver &driver() {
  static const Driver found;
  return found;
}

// Tells what the driver said of a call that did `what`.
inline int32_t driver_error(CUresult result, const char *what) {
  const char *name = nullptr, *text = nullptr;
  driver().cuGetErrorName(result, &name), driver().cuGetErrorString(result, &text);
  return fail(ATTN_MLIR_ERROR_DRIVER, "%s: %s (%d): %s", what, name ? name : "an unknown error", int(result), text ? text : "");
}
inline void check(CUresult result, const char *what) {
  if (result) throw Failure{driver_error(result, what)};
}

constexpr const char *kMachine = "a CUDA device";
// How far apart rows may be, in bytes; 0: as far as they like.
constexpr int64_t kRowBytes = 0;

// The compute capability that the library was made for.
struct Machine {
  const char *arch;
  int major, minor;
};

// A context with what this library keeps in it.
struct Loaded {
  CUcontext context = nullptr;
  int multiprocessors = 0, shared_bytes = 0;
  char *zero = nullptr;
  char name[96] = "";
  std::map<const Kernel *, CUfunction> functions;
};

// Calls that a CUDA graph under capture would forbid, such as loading code, are allowed while one of these lives.
struct Relaxed {
  int mode = kRelaxed;
  Relaxed() { check(driver().cuThreadExchangeStreamCaptureMode(&mode), "relaxing the capture of a graph"); }
  Relaxed(const Relaxed &) = delete;
  ~Relaxed() { driver().cuThreadExchangeStreamCaptureMode(&mode); }
};

// The device and stream of the call that this thread is in.
struct Active {
  Loaded *loaded = nullptr;
  CUstream stream = nullptr;
  int32_t device = 0;
  bool managed = false;
};
inline Active &active() {
  static thread_local Active one;
  return one;
}

constexpr int32_t kManaged = 13;  // kDLCUDAManaged

inline bool is_own(DLDevice device) {
  int32_t type = device.device_type;
  return type == kManaged || (type == kDLCUDA && (!active().loaded || device.device_id == active().device));
}
inline int32_t check_device(const char *name, DLDevice device) {
  if (is_own(device)) return 0;
  if (device.device_type == kDLCUDA)
    return fail(ATTN_MLIR_ERROR_DEVICE, "%s is on CUDA device %d, but q is on %d", name, int(device.device_id), int(active().device));
  return fail(ATTN_MLIR_ERROR_DEVICE, "%s is on device type %d, this library reads the memory of CUDA devices (kDLCUDA)", name,
              int(device.device_type));
}

// A call: the context of its stream, or of the device of q, is the thread's as long as this lives.
class Session {
 public:
  Session() = default;
  Session(const Session &) = delete;
  ~Session() {
    active() = Active();
    CUcontext old;
    if (pushed_) driver().cuCtxPopCurrent_v2(&old);
  }

  // Without q only sizes are asked for, which takes no driver.
  int32_t enter(const Machine &machine, const DLTensor *q, CUstream stream) {
    if (!q) return 0;
    ATTN_CHECK(check_device("q", q->device));
    if (driver().missing[0]) return fail(ATTN_MLIR_ERROR_DRIVER, "%s", driver().missing);
    check(driver().cuInit(0), "starting the NVIDIA driver");
    CUdevice device = 0, current = -1;
    check(driver().cuDeviceGet(&device, int(q->device.device_id)), "looking for the device of q");
    CUcontext context = nullptr;
    bool given = uintptr_t(stream) > 2;  // 0, 1 and 2 are the default streams of whatever context is current
    if (given) check(driver().cuStreamGetCtx(stream, &context), "asking for the context of the stream");
    else check(driver().cuCtxGetCurrent(&context), "asking for the context of the thread");
    if (context) {
      push(context);
      check(driver().cuCtxGetDevice(&current), "asking for the device of a context");
      if (current != device) {
        if (given) return fail(ATTN_MLIR_ERROR_DEVICE, "the stream is of another device than q, which is on %d", int(q->device.device_id));
        CUcontext old;
        driver().cuCtxPopCurrent_v2(&old), pushed_ = false, context = nullptr;
      }
    }
    if (!context) {
      check(driver().cuDevicePrimaryCtxRetain(&context, device), "taking the context of the device");
      push(context);
    }
    Active &now = active();
    ATTN_CHECK(find(machine, context, device, int(q->device.device_id), now.loaded));
    now.stream = stream, now.device = q->device.device_id;
    return 0;
  }

 private:
  bool pushed_ = false;

  void push(CUcontext context) {
    check(driver().cuCtxPushCurrent_v2(context), "entering a context");
    pushed_ = true;
  }

  static int32_t find(const Machine &machine, CUcontext context, CUdevice device, int number, Loaded *&to) {
    static std::map<CUcontext, Loaded> all;
    std::lock_guard<std::mutex> guard(lock());
    auto found = all.find(context);
    if (found == all.end()) {
      Loaded made;
      int major = 0, minor = 0;
      made.context = context;
      for (auto &each : {std::make_pair(kMultiprocessors, &made.multiprocessors), std::make_pair(kSharedBytes, &made.shared_bytes),
                         std::make_pair(kMajor, &major), std::make_pair(kMinor, &minor)})
        check(driver().cuDeviceGetAttribute(each.second, each.first, device), "asking for an attribute of the device");
      check(driver().cuDeviceGetName(made.name, int(sizeof made.name) - 1, device), "asking for the name of the device");
      if (major != machine.major || minor != machine.minor)
        return fail(ATTN_MLIR_ERROR_PROCESSOR, "device %d, a %s, has compute capability %d.%d, and the library was made for %s", number,
                    made.name, major, minor, machine.arch);
      Relaxed relaxed;
      CUdeviceptr zero = 0;
      check(driver().cuMemAlloc_v2(&zero, 64), "taking memory");
      check(driver().cuMemsetD8_v2(zero, 0, 64), "clearing memory");
      made.zero = reinterpret_cast<char *>(uintptr_t(zero));
      found = all.emplace(context, made).first;
    }
    to = &found->second;
    return 0;
  }
};

// What attn_memory.h does with memory, in the order of the stream of the call.
inline CUresult take_memory(void **data, size_t bytes) {
  CUdeviceptr place = 0;
  CUresult result = driver().cuMemAllocAsync(&place, bytes, active().stream);
  if (!result) *data = reinterpret_cast<void *>(uintptr_t(place));
  return result;
}
inline void give_memory(void *data) { driver().cuMemFreeAsync(CUdeviceptr(uintptr_t(data)), active().stream); }
inline CUresult read_memory(char *to, char *from, size_t bytes) {
  return driver().cuMemcpyDtoHAsync_v2(to, CUdeviceptr(uintptr_t(from)), bytes, active().stream);
}
inline CUresult wait_for_stream() { return driver().cuStreamSynchronize(active().stream); }
inline CUresult capture_status(int *status) { return driver().cuStreamIsCapturing(active().stream, status); }

}  // namespace attn
