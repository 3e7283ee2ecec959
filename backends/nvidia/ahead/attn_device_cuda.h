// What attn_device.h needs of CUDA.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Half = __half;
using BFloat = __nv_bfloat16;
#define ATTN_GLOBAL extern "C" __global__ void
#define ATTN_INLINE static __device__ __forceinline__
ATTN_INLINE long long attn_thread() { return blockIdx.x * 256ll + threadIdx.x; }
ATTN_INLINE float attn_wide(Half x) { return __half2float(x); }
ATTN_INLINE float attn_wide(BFloat x) { return __bfloat162float(x); }

