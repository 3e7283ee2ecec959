// What a library does on the GPU besides its kernels: copies, sums of two tensors, sums of slots, one value everywhere. The same text for CUDA
// and HIP, with what attn_device_cuda.h or attn_device_hip.h define: Half, BFloat, ATTN_GLOBAL, ATTN_INLINE, attn_wide, and the number of a thread.
enum { F16 = 1, BF16 = 2, F32 = 3, F64 = 4 };
constexpr int kRank = 12;

// A tensor whose dimensions are padded with ones at the front.
struct Strided {
  char *data;
  long long strides[kRank];
  int element;  // of attn::Element
  int bytes;
};
struct Shape {
  long long count, threads;
  int sizes[kRank];
};

ATTN_INLINE double load(const char *p, int element) {
  switch (element) {
    case F16: return attn_wide(*reinterpret_cast<const Half *>(p));
    case BF16: return attn_wide(*reinterpret_cast<const BFloat *>(p));
    case F32: return *reinterpret_cast<const float *>(p);
    default: return *reinterpret_cast<const double *>(p);
  }
}
// As torch converts: to 16 bits by way of 32.
ATTN_INLINE void store(char *p, int element, double value) {
  switch (element) {
    case F16: *reinterpret_cast<Half *>(p) = Half(float(value)); break;
    case BF16: *reinterpret_cast<BFloat *>(p) = BFloat(float(value)); break;
    case F32: *reinterpret_cast<float *>(p) = float(value); break;
    default: *reinterpret_cast<double *>(p) = value;
  }
}
ATTN_INLINE char *at(const Strided &x, const Shape &shape, long long i) {
  long long offset = 0;
  for (int d = kRank - 1; d >= 0; --d) {
    if (shape.sizes[d] == 1) continue;
    offset += i % shape.sizes[d] * x.strides[d];
    i /= shape.sizes[d];
  }
  return x.data + offset * x.bytes;
}

#define EACH(i, shape) for (long long i = attn_thread(); i < (shape).count; i += (shape).threads)

ATTN_GLOBAL attn_copy(Strided from, Strided to, Shape shape) {
  EACH(i, shape) {
    const char *a = at(from, shape, i);
    char *b = at(to, shape, i);
    if (from.element != to.element) {
      store(b, to.element, load(a, from.element));
    } else {
      switch (from.bytes) {
        case 1: *b = *a; break;
        case 2: *reinterpret_cast<short *>(b) = *reinterpret_cast<const short *>(a); break;
        case 4: *reinterpret_cast<int *>(b) = *reinterpret_cast<const int *>(a); break;
        default: *reinterpret_cast<long long *>(b) = *reinterpret_cast<const long long *>(a);
      }
    }
  }
}

ATTN_GLOBAL attn_add(Strided x, Strided y, Strided to, Shape shape) {
  EACH(i, shape) store(at(to, shape, i), to.element, load(at(x, shape, i), x.element) + load(at(y, shape, i), y.element));
}

// to[i] is the sum of from[n][i], slots of `step` elements, in their order.
ATTN_GLOBAL attn_fold(Strided from, Strided to, Shape shape, long long slots, long long step) {
  EACH(i, shape) {
    double sum = 0;
    for (long long n = 0; n < slots; ++n) sum += load(at(from, shape, i) + n * step * from.bytes, from.element);
    store(at(to, shape, i), to.element, sum);
  }
}

ATTN_GLOBAL attn_fill(Strided to, Shape shape, double value) {
  EACH(i, shape) store(at(to, shape, i), to.element, value);
}
