// What generated kernels use of CUDA's cuda_fp16.h, by the same instructions, for NVRTC, which brings no headers.
#pragma once

struct alignas(2) __half {
  unsigned short bits;
  __half() = default;
  __device__ __forceinline__ __half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
};
struct alignas(4) __half2 {
  __half x, y;
};

__device__ __forceinline__ __half __float2half_rn(float value) { return __half(value); }
__device__ __forceinline__ float __half2float(__half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ __forceinline__ float2 __half22float2(__half2 pair) { return make_float2(__half2float(pair.x), __half2float(pair.y)); }
