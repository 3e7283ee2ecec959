// See cuda.h.
#pragma once
#include "cuda.h"
ATTN_SHORT(__half, __half2, __half2float, __float2half_rn, __floats2half2_rn)
ATTN_ONLY(float2, __half22float2, __half2)
