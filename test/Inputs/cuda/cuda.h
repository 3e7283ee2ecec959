// Just enough of CUDA for clang to read generated kernels (`-x cuda -fsyntax-only -nocudainc`): no toolkit is needed.
#pragma once
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define ATTN_ONLY(result, name, ...) __device__ result name(__VA_ARGS__);
#define ATTN_BOTH(type, name) ATTN_ONLY(type, name, type, type)
// A number of 16 bits, two of them, and what converts to and from f32.
#define ATTN_SHORT(type, pair, widen, round, round_both)   \
  struct type {                                            \
    unsigned short bits;                                   \
    type() = default;                                      \
    __device__ type(float);                                \
  };                                                       \
  struct pair { type x, y; };                              \
  ATTN_ONLY(float, widen, type)                            \
  ATTN_ONLY(type, round, float)                            \
  ATTN_ONLY(pair, round_both, float, float)
typedef unsigned long size_t;
struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
extern const __device__ dim3 threadIdx, blockIdx, gridDim, blockDim;
#ifndef ATTN_NVRTC // whose cuda.h has it
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#endif

// The overloads that CUDA has: a call with two types of integers is ambiguous, or not, as it is there.
#define ATTN_EXTREMA(name)                                                                                              \
  ATTN_BOTH(int, name) ATTN_BOTH(unsigned, name) ATTN_BOTH(long, name) ATTN_BOTH(unsigned long, name)                   \
  ATTN_BOTH(long long, name) ATTN_BOTH(unsigned long long, name) ATTN_BOTH(float, name) ATTN_BOTH(double, name)         \
  ATTN_ONLY(unsigned, name, int, unsigned) ATTN_ONLY(unsigned, name, unsigned, int)                                     \
  ATTN_ONLY(unsigned long, name, long, unsigned long) ATTN_ONLY(unsigned long, name, unsigned long, long)               \
  ATTN_ONLY(unsigned long long, name, long long, unsigned long long)                                                    \
  ATTN_ONLY(unsigned long long, name, unsigned long long, long long)                                                    \
  ATTN_ONLY(double, name, float, double) ATTN_ONLY(double, name, double, float)
ATTN_EXTREMA(min)
ATTN_EXTREMA(max)
ATTN_ONLY(int, abs, int)
ATTN_ONLY(long, abs, long)
ATTN_ONLY(long long, abs, long long)
ATTN_ONLY(long long, llabs, long long)
#define ATTN_FLOAT(name) ATTN_ONLY(float, name##f, float) ATTN_ONLY(double, name, double)
ATTN_FLOAT(exp) ATTN_FLOAT(exp2) ATTN_FLOAT(expm1) ATTN_FLOAT(log) ATTN_FLOAT(log2) ATTN_FLOAT(log10) ATTN_FLOAT(log1p)
ATTN_FLOAT(sqrt) ATTN_FLOAT(rsqrt) ATTN_FLOAT(cbrt) ATTN_FLOAT(fabs) ATTN_FLOAT(sin) ATTN_FLOAT(cos) ATTN_FLOAT(tan)
ATTN_FLOAT(tanh) ATTN_FLOAT(floor) ATTN_FLOAT(ceil) ATTN_FLOAT(trunc) ATTN_FLOAT(rint) ATTN_FLOAT(round) ATTN_FLOAT(erf)
#define ATTN_FLOATS(name) ATTN_ONLY(float, name##f, float, float) ATTN_ONLY(double, name, double, double)
ATTN_FLOATS(fmax) ATTN_FLOATS(fmin) ATTN_FLOATS(fmod) ATTN_FLOATS(pow) ATTN_FLOATS(atan2) ATTN_FLOATS(copysign)
ATTN_ONLY(float, fmaf, float, float, float)
ATTN_ONLY(double, fma, double, double, double)
ATTN_ONLY(float, fabs, float)
ATTN_ONLY(float, __saturatef, float)
ATTN_ONLY(int, __float_as_int, float)
ATTN_ONLY(float, __int_as_float, int)
ATTN_ONLY(unsigned, __float_as_uint, float)
ATTN_ONLY(float, __uint_as_float, unsigned)
ATTN_ONLY(int, __popc, unsigned)
ATTN_ONLY(unsigned, atomicInc, unsigned *, unsigned)
ATTN_ONLY(unsigned, __byte_perm, unsigned, unsigned, unsigned)
ATTN_ONLY(unsigned, __reduce_or_sync, unsigned, unsigned)
ATTN_ONLY(unsigned, __vmaxu2, unsigned, unsigned)
ATTN_ONLY(int, __vimax3_s32, int, int, int)
ATTN_ONLY(unsigned, __umulhi, unsigned, unsigned)
ATTN_ONLY(int, __clz, int)
ATTN_ONLY(int, __ffs, int)
ATTN_ONLY(unsigned, __vimax3_u16x2, unsigned, unsigned, unsigned)
ATTN_ONLY(float2, make_float2, float, float)
ATTN_ONLY(float4, make_float4, float, float, float, float)
ATTN_ONLY(float4, __ldcg, const float4 *)
ATTN_ONLY(void, __stcg, float4 *, float4)
ATTN_ONLY(void, __syncwarp, unsigned = 0xffffffffu)
ATTN_ONLY(void, __syncthreads, void)
ATTN_ONLY(void, __threadfence, void)
ATTN_ONLY(void, __threadfence_system, void)
ATTN_ONLY(int, __any_sync, unsigned, int)
ATTN_ONLY(int, __all_sync, unsigned, int)
ATTN_ONLY(unsigned, __ballot_sync, unsigned, int)
ATTN_ONLY(size_t, __cvta_generic_to_shared, const void *)
#define ATTN_SHUFFLES(type)                                                                                             \
  ATTN_ONLY(type, __shfl_sync, unsigned, type, int, int = 32) ATTN_ONLY(type, __shfl_xor_sync, unsigned, type, int, int = 32) \
  ATTN_ONLY(type, __shfl_up_sync, unsigned, type, unsigned, int = 32) ATTN_ONLY(type, __shfl_down_sync, unsigned, type, unsigned, int = 32)
ATTN_SHUFFLES(int)
ATTN_SHUFFLES(unsigned)
ATTN_SHUFFLES(long long)
ATTN_SHUFFLES(float)
ATTN_SHUFFLES(double)
ATTN_ONLY(unsigned, atomicOr, unsigned *, unsigned)
ATTN_ONLY(int, atomicAdd, int *, int)
ATTN_ONLY(float, atomicAdd, float *, float)
ATTN_ONLY(double, atomicAdd, double *, double)
