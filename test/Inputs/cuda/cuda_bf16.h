// See cuda.h.
#pragma once
#include "cuda.h"
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __device__ __nv_bfloat16(float);
};
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
ATTN_ONLY(float, __bfloat162float, __nv_bfloat16)
ATTN_ONLY(__nv_bfloat16, __float2bfloat16_rn, float)
ATTN_ONLY(__nv_bfloat162, __floats2bfloat162_rn, float, float)
