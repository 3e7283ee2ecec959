// Kernels of programs on a GPU, and their parameters; see backends/gpu/kernel.py.
#include <dlfcn.h>
#include <map>
#include <mutex>

namespace attn {

enum ParameterKind : uint8_t { MAP, WINDOW, POINTER, SIZE, STRIDE, SCALAR, COUNTER, BLOCKS };
enum Number : uint8_t { INT, UNSIGNED, LONG, FLOAT, DOUBLE };

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
  int64_t stored;    // rows up to which the first program stores its sums, and others add; else all add to zeros
};

// What the grid runs over: blocks of rows, chunks of keys, or blocks of a state's columns.
enum Grid : uint8_t { ROWS, PAIRS, CHUNKS };

struct Kernel {
  const char *entry;
  const char *code;
  int threads, shared_bytes, cluster;
  bool persistent;
  int occupancy;  // thread blocks of a persistent kernel on a multiprocessor
  int64_t block_q;
  Grid grid;
  int over;
  int parameter_count;
  const Parameter *parameters;
  const Output *outputs;
  int semaphore_over;  // -1: no semaphores
  int64_t semaphore_rows, semaphore_parts;
  int64_t partial_words;  // of memory for partial sums, int32; 0: none
  int64_t blocks;   // of CHUNKS
  int sequences;    // the operand that has the offsets of sequences, or -1
  int64_t segment;  // positions of a segment, or 0
  int values;       // the operand whose columns a launch sees a slice of, of so many `columns`, or -1
  int64_t columns;
};

// Where tensors lie whose sizes alone count: somewhere that every kernel can read and write.
inline char *const kStandIn = reinterpret_cast<char *>(uintptr_t(1) << 20);

inline std::mutex &lock() {
  static std::mutex one;
  return one;
}

// The stream of a call through tvm-ffi, which is there where somebody makes one.
inline void *stream_of(const DLTensor *q) {
  using Get = void *(*)(int32_t, int32_t);
  void *symbol = dlsym(RTLD_DEFAULT, "TVMFFIEnvGetStream");
  void *library = symbol ? nullptr : dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library) symbol = dlsym(library, "TVMFFIEnvGetStream");
  return q && symbol ? reinterpret_cast<Get>(symbol)(q->device.device_type, q->device.device_id) : nullptr;
}

}  // namespace attn
