// See cuda.h.
#pragma once
#include "cuda.h"
ATTN_SHORT(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16_rn, __floats2bfloat162_rn)
