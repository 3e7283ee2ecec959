// What a library does on the GPU besides its kernels: copies, sums of two tensors, sums of slots, one value everywhere.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
  long long count;
  int sizes[kRank];
};

__device__ double load(const char *p, int element) {
  switch (element) {
    case F16: return __half2float(*reinterpret_cast<const __half *>(p));
    case BF16: return __bfloat162float(*reinterpret_cast<const __nv_bfloat16 *>(p));
    case F32: return *reinterpret_cast<const float *>(p);
    default: return *reinterpret_cast<const double *>(p);
  }
}
// As torch converts: to 16 bits by way of 32.
__device__ void store(char *p, int element, double value) {
  switch (element) {
    case F16: *reinterpret_cast<__half *>(p) = __float2half_rn(float(value)); break;
    case BF16: *reinterpret_cast<__nv_bfloat16 *>(p) = __float2bfloat16_rn(float(value)); break;
    case F32: *reinterpret_cast<float *>(p) = float(value); break;
    default: *reinterpret_cast<double *>(p) = value;
  }
}
__device__ char *at(const Strided &x, const Shape &shape, long long i) {
  long long offset = 0;
  for (int d = kRank - 1; d >= 0; --d) {
    if (shape.sizes[d] == 1) continue;
    offset += i % shape.sizes[d] * x.strides[d];
    i /= shape.sizes[d];
  }
  return x.data + offset * x.bytes;
}

#define EACH(i, count) for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)

extern "C" __global__ void attn_copy(Strided from, Strided to, Shape shape) {
  EACH(i, shape.count) {
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

extern "C" __global__ void attn_add(Strided x, Strided y, Strided to, Shape shape) {
  EACH(i, shape.count) store(at(to, shape, i), to.element, load(at(x, shape, i), x.element) + load(at(y, shape, i), y.element));
}

// to[i] is the sum of from[n][i], slots of `step` elements, in their order.
extern "C" __global__ void attn_fold(Strided from, Strided to, Shape shape, long long slots, long long step) {
  EACH(i, shape.count) {
    double sum = 0;
    for (long long n = 0; n < slots; ++n) sum += load(at(from, shape, i) + n * step * from.bytes, from.element);
    store(at(to, shape, i), to.element, sum);
  }
}

extern "C" __global__ void attn_fill(Strided to, Shape shape, double value) {
  EACH(i, shape.count) store(at(to, shape, i), to.element, value);
}
