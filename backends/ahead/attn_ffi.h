// The same functions as tvm-ffi calls them: `__tvm_ffi_<name>`, arguments as tagged values. Nothing of tvm-ffi is needed to build or to load
// this; what follows states the part of its C ABI (0.1) that is used.
#include <dlfcn.h>

namespace attn {

struct Any {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t integer;
    double real;
    void *pointer;
  };
};

enum AnyKind : uint8_t { ANY_TENSOR, ANY_REAL, ANY_INTEGER };
enum : int32_t { kAnyNone = 0, kAnyInt = 1, kAnyBool = 2, kAnyFloat = 3, kAnyDLTensor = 7, kAnyTensor = 70 };
constexpr size_t kObjectHeader = 24;  // a tensor object is this header and a DLTensor

class AnyArguments {
 public:
  AnyArguments(const char *name, const Any *args, int32_t count, const AnyKind *kinds, int32_t wanted) : args_(args), wanted_(wanted) {
    if (count != wanted && count != wanted + 1) {
      fail(1, "%s takes %d arguments, and the number of threads if you like, got %d", name, int(wanted), int(count));
      failed_ = true;
      return;
    }
    more_ = count > wanted;
    for (int32_t i = 0; i < count && !failed_; ++i) {
      int32_t type = args[i].type_index;
      AnyKind kind = i < wanted ? kinds[i] : ANY_INTEGER;
      bool fits = kind == ANY_TENSOR ? type == kAnyNone || type == kAnyDLTensor || type == kAnyTensor
                                     : type == kAnyInt || type == kAnyBool || (kind == ANY_REAL && type == kAnyFloat);
      if (fits) continue;
      fail(1, "argument %d of %s must be %s, its tvm-ffi type is %d", int(i), name,
           kind == ANY_TENSOR ? "a tensor" : kind == ANY_REAL ? "a number" : "an integer", int(type));
      failed_ = true;
    }
  }
  bool fails() const { return failed_; }
  const DLTensor *tensor(int i) const {
    const Any &any = args_[i];
    if (any.type_index == kAnyNone) return nullptr;
    char *p = static_cast<char *>(any.pointer);
    return reinterpret_cast<const DLTensor *>(any.type_index == kAnyTensor ? p + kObjectHeader : p);
  }
  double real(int i) const { return args_[i].type_index == kAnyFloat ? args_[i].real : double(args_[i].integer); }
  int64_t integer(int i) const { return args_[i].integer; }
  // The memory of a tensor of bytes, for `saved`.
  bool is_memory(int i) {
    const DLTensor *t = tensor(i);
    int64_t step = 1;
    bool fits = !t || is_own(t->device);
    for (int32_t d = t && t->strides ? t->ndim - 1 : -1; d >= 0; step *= t->shape[d--])
      fits = fits && (t->shape[d] <= 1 || t->strides[d] == step);
    if (!fits && !failed_) fail(1, "saved must be a dense tensor in the memory of %s", kMachine), failed_ = true;
    return fits;
  }
  void *data(int i) const {
    const DLTensor *t = tensor(i);
    return t && t->data ? static_cast<char *>(t->data) + t->byte_offset : nullptr;
  }
  size_t bytes(int i) const {
    const DLTensor *t = tensor(i);
    if (!t) return 0;
    size_t n = (size_t(t->dtype.bits) * t->dtype.lanes + 7) / 8;
    for (int32_t d = 0; d < t->ndim; ++d) n *= size_t(t->shape[d]);
    return n;
  }
  int32_t threads() const { return more_ ? int32_t(args_[wanted_].integer) : 0; }

 private:
  const Any *args_;
  int32_t wanted_;
  bool more_ = false, failed_ = false;
};

// Hands the message to tvm-ffi, which is there where somebody calls these functions.
inline int raise(int32_t code) {
  using Set = void (*)(const char *, const char *);
  void *symbol = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
  for (const char *name : {"libtvm_ffi.so", "libtvm_ffi.dylib"}) {
    void *library = symbol ? nullptr : dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library) symbol = dlsym(library, "TVMFFIErrorSetRaisedFromCStr");
  }
  const char *kind = code == ATTN_MLIR_ERROR_DTYPE ? "TypeError" : code == ATTN_MLIR_ERROR_MEMORY ? "MemoryError" : "ValueError";
  if (symbol) reinterpret_cast<Set>(symbol)(kind, message());
  return -1;
}

}  // namespace attn
