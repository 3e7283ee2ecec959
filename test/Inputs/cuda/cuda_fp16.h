// See cuda.h.
#pragma once
#include "cuda.h"
struct __half {
  unsigned short bits;
  __half() = default;
  __device__ __half(float);
};
struct __half2 { __half x, y; };
ATTN_ONLY(float, __half2float, __half)
ATTN_ONLY(__half, __float2half_rn, float)
ATTN_ONLY(__half2, __floats2half2_rn, float, float)
ATTN_ONLY(float2, __half22float2, __half2)
