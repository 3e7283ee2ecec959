// What generated kernels use of CUDA's cuda_bf16.h, by the same instructions, for NVRTC, which brings no headers.
#pragma once

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __device__ __forceinline__ __nv_bfloat16(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 value) {
  float wide;
#if __CUDA_ARCH__ >= 900
  asm("cvt.f32.bf16 %0, %1;" : "=f"(wide) : "h"(value.bits));
#else
  asm("mov.b32 %0, {0, %1};" : "=f"(wide) : "h"(value.bits));
#endif
  return wide;
}
__device__ __forceinline__ float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return make_float2(__bfloat162float(pair.x), __bfloat162float(pair.y));
}
