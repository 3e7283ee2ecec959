// Tensors of a library made ahead of time: elements, strided memory, threads. No header of the project is needed beside the generated one.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif
#include <unistd.h>

namespace attn {

#define ATTN_CHECK(call) \
  if (int32_t code_ = (call)) return code_

inline char *message() {
  static thread_local char text[512] = "";
  return text;
}

__attribute__((format(printf, 2, 3))) inline int32_t fail(int32_t code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message(), 512, format, arguments);
  va_end(arguments);
  return code;
}

// Ends a call with an error that was told.
struct Failure {
  int32_t code;
};

enum Element : uint8_t { NONE, F16, BF16, F32, F64, I1, I8, I16, I32, I64, INDEX, U8 };
#ifndef ATTN_MAX_RANK
#define ATTN_MAX_RANK 12
#endif
constexpr int kMaxRank = ATTN_MAX_RANK;

struct ElementFacts {
  const char *name;
  int64_t bytes;
  uint8_t code;
};
inline const ElementFacts &facts(Element element) {
  static const ElementFacts all[] = {{"none", 0, 0},
                                     {"float16", 2, kDLFloat},
                                     {"bfloat16", 2, kDLBfloat},
                                     {"float32", 4, kDLFloat},
                                     {"float64", 8, kDLFloat},
                                     {"bool", 1, kDLBool},
                                     {"int8", 1, kDLInt},
                                     {"int16", 2, kDLInt},
                                     {"int32", 4, kDLInt},
                                     {"int64", 8, kDLInt},
                                     {"index", 8, kDLInt},
                                     {"uint8", 1, kDLUInt}};
  return all[element];
}

struct Tensor {
  char *data = nullptr;
  Element element = NONE;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  int64_t count(int from = 0) const {
    int64_t n = 1;
    for (int i = from; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t bytes() const { return count() * facts(element).bytes; }
  bool dense() const {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }
  void set_dense_strides() {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) strides[i] = step, step *= shape[i] > 0 ? shape[i] : 1;
  }
};

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent == 0) {
    float small = float(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    std::memcpy(&bits, &small, 4);
    bits |= sign;
  } else {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// To the nearest, ties to even: what is added to the float puts the last bit that is kept at the place where additions round.
inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
  if (bits < 0x38800000) {                       // below 2^-14
    float small;
    std::memcpy(&small, &bits, 4);
    small += 0.5f;
    uint32_t sum;
    std::memcpy(&sum, &small, 4);
    return sign | uint16_t(sum - 0x3f000000);
  }
  bits += 0xc8000fff + ((bits >> 13) & 1);
  return sign | uint16_t(bits >> 13);
}

inline float bfloat_to_float(uint16_t b) {
  uint32_t bits = uint32_t(b) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline double load(const char *p, Element element) {
  switch (element) {
    case F16: { uint16_t x; std::memcpy(&x, p, 2); return half_to_float(x); }
    case BF16: { uint16_t x; std::memcpy(&x, p, 2); return bfloat_to_float(x); }
    case F32: { float x; std::memcpy(&x, p, 4); return x; }
    default: { double x; std::memcpy(&x, p, 8); return x; }
  }
}

// As torch converts: to 16 bits by way of 32.
inline void store(char *p, Element element, double value) {
  switch (element) {
    case F16: { uint16_t x = float_to_half(float(value)); std::memcpy(p, &x, 2); break; }
    case BF16: { uint16_t x = float_to_bfloat(float(value)); std::memcpy(p, &x, 2); break; }
    case F32: { float x = float(value); std::memcpy(p, &x, 4); break; }
    default: std::memcpy(p, &value, 8);
  }
}

inline int64_t load_integer(const char *p, Element element) {
  switch (element) {
    case I1: { uint8_t x; std::memcpy(&x, p, 1); return x != 0; }
    case I8: { int8_t x; std::memcpy(&x, p, 1); return x; }
    case U8: { uint8_t x; std::memcpy(&x, p, 1); return x; }
    case I16: { int16_t x; std::memcpy(&x, p, 2); return x; }
    case I32: { int32_t x; std::memcpy(&x, p, 4); return x; }
    default: { int64_t x; std::memcpy(&x, p, 8); return x; }
  }
}

// Processors that the system has, by which grids are chosen, whatever number of threads is used.
inline int64_t processors() {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? n : 1;
}

inline int default_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  int n = int(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
#endif
}

// How many threads a call uses that asks for `wanted`: no more than there are processors, whatever the caller writes.
inline int threads_for(int32_t wanted) {
  int most = default_threads();
  if (most < processors()) most = int(processors());
  return wanted <= 0 ? default_threads() : wanted < most ? wanted : most;
}

// Calls work() on so many threads at the same time.
template <class Work>
void on_threads(int threads, const Work &work) {
  if (threads <= 1) {
    work();
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  work();
#else
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { work(); });
  } catch (...) {  // the system gives no more of them: those that there are take all of the work
  }
  work();
  for (auto &other : others) other.join();
#endif
}

// Calls part(begin, end) for pieces of 0 to n.
template <class Part>
void for_parts(int threads, int64_t n, const Part &part) {
  constexpr int64_t kPiece = 1 << 15;
  if (threads <= 1 || n <= kPiece) {
    if (n > 0) part(0, n);
    return;
  }
  std::atomic<int64_t> next{0};
  on_threads(threads, [&] {
    for (int64_t begin; (begin = next.fetch_add(kPiece)) < n;) part(begin, begin + kPiece < n ? begin + kPiece : n);
  });
}

// Calls at(offset of x, offset of y) for elements begin to end of two tensors of the same shape, in elements.
template <class At>
void walk(const Tensor &x, const Tensor &y, int64_t begin, int64_t end, const At &at) {
  if (x.dense() && y.dense()) {
    for (int64_t i = begin; i < end; ++i) at(i, i);
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    int64_t rest = i, a = 0, b = 0;
    for (int d = x.rank - 1; d >= 0; --d) {
      int64_t place = rest % x.shape[d];
      rest /= x.shape[d];
      a += place * x.strides[d], b += place * y.strides[d];
    }
    at(a, b);
  }
}

inline void fill(const Tensor &to, double value, int threads) {
  if (value == 0.0 && to.dense()) {
    for_parts(threads, to.bytes(), [&](int64_t begin, int64_t end) { std::memset(to.data + begin, 0, size_t(end - begin)); });
    return;
  }
  int64_t width = facts(to.element).bytes;
  for_parts(threads, to.count(), [&](int64_t begin, int64_t end) {
    walk(to, to, begin, end, [&](int64_t i, int64_t) { store(to.data + i * width, to.element, value); });
  });
}

// Copies elements, of another type if need be.
inline void copy(const Tensor &from, const Tensor &to, int threads) {
  int64_t a = facts(from.element).bytes, b = facts(to.element).bytes;
  bool same = from.element == to.element;
  for_parts(threads, to.count(), [&](int64_t begin, int64_t end) {
    if (same && from.dense() && to.dense()) {
      std::memcpy(to.data + begin * b, from.data + begin * a, size_t((end - begin) * a));
      return;
    }
    walk(from, to, begin, end, [&](int64_t i, int64_t k) {
      if (same) std::memcpy(to.data + k * b, from.data + i * a, size_t(a));
      else store(to.data + k * b, to.element, load(from.data + i * a, from.element));
    });
  });
}

// to = x + y, elementwise; the element of all three is the same. Sums of two numbers of up to 32 bits are rounded once.
inline void add(const Tensor &x, const Tensor &y, const Tensor &to, int threads) {
  int64_t width = facts(to.element).bytes;
  bool plain = to.element == F32 && x.dense() && y.dense() && to.dense();
  for_parts(threads, to.count(), [&](int64_t begin, int64_t end) {
    if (plain) {
      const float *a = reinterpret_cast<const float *>(x.data), *b = reinterpret_cast<const float *>(y.data);
      float *c = reinterpret_cast<float *>(to.data);
      for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      int64_t rest = i, a = 0, b = 0, c = 0;
      for (int d = to.rank - 1; d >= 0; --d) {
        int64_t place = rest % to.shape[d];
        rest /= to.shape[d];
        a += place * x.strides[d], b += place * y.strides[d], c += place * to.strides[d];
      }
      store(to.data + c * width, to.element, load(x.data + a * width, x.element) + load(y.data + b * width, y.element));
    }
  });
}

}  // namespace attn
