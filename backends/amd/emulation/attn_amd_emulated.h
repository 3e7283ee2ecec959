// Device code on the CPU: what attn_amd.h takes from a compiler for AMD GPUs, for clang on a host. The 64 lanes of a wave are fibers;
// operations across lanes (MFMA, permutes, ballots, barriers) wait until all lanes of the wave have arrived (see runtime.cpp).
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's: with that of C++17 clang reads a third longer
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include <string.h>

#include "wave.h"

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static __attribute__((used, section("attn_lds")))
#define ATTN_KERNEL(threads, waves) extern "C" __attribute__((noinline, visibility("default"))) void

typedef _Float16 attn_emulated_half2 __attribute__((ext_vector_type(2)));
typedef _Float16 attn_emulated_half4 __attribute__((ext_vector_type(4)));
typedef short attn_emulated_short4 __attribute__((ext_vector_type(4)));
typedef float attn_emulated_float4 __attribute__((ext_vector_type(4)));
typedef float attn_emulated_float16 __attribute__((ext_vector_type(16)));
typedef unsigned attn_emulated_uint2 __attribute__((ext_vector_type(2)));
typedef unsigned attn_emulated_uint4 __attribute__((ext_vector_type(4)));

#define ATTN_INLINE static inline __attribute__((always_inline))

ATTN_INLINE unsigned __builtin_amdgcn_workitem_id_x() { return attn_emulated_thread(); }
ATTN_INLINE unsigned __builtin_amdgcn_workgroup_id_x() { return attn_emulated_block().x; }
ATTN_INLINE unsigned __builtin_amdgcn_workgroup_id_y() { return attn_emulated_block().y; }
ATTN_INLINE unsigned __builtin_amdgcn_workgroup_id_z() { return attn_emulated_block().z; }

// ---- operations of a whole wave
#define ATTN_MFMA(NAME, INPUT, SUMS, KIND) \
  ATTN_INLINE SUMS __builtin_amdgcn_mfma_f32_##NAME(INPUT a, INPUT b, SUMS c, int, int, int) { \
    SUMS d; \
    AttnWaveOp op{KIND, &d, &a, &b, &c, 0}; \
    attn_emulated_wave(&op); \
    return d; \
  }
ATTN_MFMA(32x32x8f16, attn_emulated_half4, attn_emulated_float16, ATTN_MFMA_32_F16)
ATTN_MFMA(32x32x8bf16_1k, attn_emulated_short4, attn_emulated_float16, ATTN_MFMA_32_BF16)
ATTN_MFMA(16x16x16f16, attn_emulated_half4, attn_emulated_float4, ATTN_MFMA_16_F16)
ATTN_MFMA(16x16x16bf16_1k, attn_emulated_short4, attn_emulated_float4, ATTN_MFMA_16_BF16)
ATTN_MFMA(32x32x2f32, float, attn_emulated_float16, ATTN_MFMA_32_F32)
ATTN_MFMA(16x16x4f32, float, attn_emulated_float4, ATTN_MFMA_16_F32)
ATTN_MFMA(32x32x16_fp8_fp8, long, attn_emulated_float16, ATTN_MFMA_32_FP8)
ATTN_MFMA(32x32x16_bf8_bf8, long, attn_emulated_float16, ATTN_MFMA_32_BF8)
#undef ATTN_MFMA

template <typename Result, typename Value>
ATTN_INLINE Result attn_emulated_exchange(int kind, Value value, long number) {
  Result result;
  AttnWaveOp op{kind, &result, &value, nullptr, nullptr, number};
  attn_emulated_wave(&op);
  return result;
}
ATTN_INLINE int __builtin_amdgcn_ds_bpermute(int address, int x) { return attn_emulated_exchange<int>(ATTN_BPERMUTE, x, address); }
ATTN_INLINE int __builtin_amdgcn_ds_permute(int address, int x) { return attn_emulated_exchange<int>(ATTN_PERMUTE, x, address); }
ATTN_INLINE int __builtin_amdgcn_ds_swizzle(int x, int pattern) { return attn_emulated_exchange<int>(ATTN_SWIZZLE, x, pattern); }
ATTN_INLINE int __builtin_amdgcn_readlane(int x, int lane) { return attn_emulated_exchange<int>(ATTN_READ_LANE, x, lane & 63); }
ATTN_INLINE int __builtin_amdgcn_readfirstlane(int x) { return attn_emulated_exchange<int>(ATTN_READ_LANE, x, 0); }
ATTN_INLINE int __builtin_amdgcn_mov_dpp(int x, int control, int rows, int banks, bool) {
  return rows == 15 && banks == 15 ? attn_emulated_exchange<int>(ATTN_DPP, x, control) : (__builtin_trap(), 0);
}
ATTN_INLINE uint64_t __builtin_amdgcn_ballot_w64(bool condition) { return attn_emulated_exchange<uint64_t>(ATTN_BALLOT, 0, condition); }
ATTN_INLINE void __builtin_amdgcn_wave_barrier() {
  AttnWaveOp op{ATTN_WAVE_BARRIER, nullptr, nullptr, nullptr, nullptr, 0};
  attn_emulated_wave(&op);
}
ATTN_INLINE void __builtin_amdgcn_s_barrier() { attn_emulated_barrier(); }

// ---- hints, and order of memory: nothing happens out of order here
ATTN_INLINE void __builtin_amdgcn_fence(int, const char *) {}
ATTN_INLINE void __builtin_amdgcn_s_setprio(short) {}
ATTN_INLINE void __builtin_amdgcn_s_waitcnt(int) {}
ATTN_INLINE void __builtin_amdgcn_s_sleep(int) {}
ATTN_INLINE void __builtin_amdgcn_sched_barrier(int) {}
ATTN_INLINE void __builtin_amdgcn_sched_group_barrier(int, int, int) {}
ATTN_INLINE void __builtin_amdgcn_iglp_opt(int) {}

// ---- arithmetic of one lane; results of transcendental functions below 2^-126 are zero, as the GPU's are
ATTN_INLINE float attn_emulated_flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
ATTN_INLINE float __builtin_amdgcn_exp2f(float x) { return attn_emulated_flush(__builtin_exp2f(x)); }
ATTN_INLINE float __builtin_amdgcn_logf(float x) { return __builtin_log2f(attn_emulated_flush(x)); }
ATTN_INLINE float __builtin_amdgcn_rcpf(float x) { return attn_emulated_flush(1.0f / attn_emulated_flush(x)); }
ATTN_INLINE float __builtin_amdgcn_rsqf(float x) { return 1.0f / __builtin_sqrtf(attn_emulated_flush(x)); }
ATTN_INLINE float __builtin_amdgcn_sqrtf(float x) { return __builtin_sqrtf(x); }
ATTN_INLINE float __builtin_amdgcn_sinf(float x) { return (float)__builtin_sin(6.283185307179586 * (double)x); }  // x in turns
ATTN_INLINE float __builtin_amdgcn_cosf(float x) { return (float)__builtin_cos(6.283185307179586 * (double)x); }
ATTN_INLINE float __builtin_amdgcn_fractf(float x) { return x - __builtin_floorf(x); }
ATTN_INLINE float __builtin_amdgcn_fmed3f(float a, float b, float c) {
  return __builtin_fmaxf(__builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c));
}
ATTN_INLINE unsigned __builtin_amdgcn_perm(unsigned high, unsigned low, unsigned selector) {
  uint64_t bytes = (uint64_t)high << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned chosen = selector >> 8 * i & 255;
    if (chosen >= 8 && chosen <= 11) __builtin_trap();  // sign bytes: not used
    unsigned byte = chosen < 8 ? bytes >> 8 * chosen & 255 : chosen == 12 ? 0 : 255;
    result |= byte << 8 * i;
  }
  return result;
}
ATTN_INLINE _Float16 attn_emulated_toward_zero(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits &= ~0x1fffu;
  float cut;
  memcpy(&cut, &bits, 4);
  if (x != x) return (_Float16)x;
  if (__builtin_fabsf(cut) < 0x1p-14f) return (_Float16)(__builtin_truncf(x * 0x1p24f) * 0x1p-24f);
  if (__builtin_fabsf(cut) > 65504.0f && __builtin_fabsf(cut) < __builtin_inff()) cut = __builtin_copysignf(65504.0f, cut);
  return (_Float16)cut;
}
ATTN_INLINE attn_emulated_half2 __builtin_amdgcn_cvt_pkrtz(float x, float y) {
  return attn_emulated_half2{attn_emulated_toward_zero(x), attn_emulated_toward_zero(y)};
}

// A byte of a type with one NaN in the place of -0, which is what too large numbers become, too.
ATTN_INLINE unsigned attn_emulated_byte(float x, int mantissa, int bias) {
  if (x != x) return 0x80;
  const float size = __builtin_fabsf(x);
  if (size == __builtin_inff()) return 0x80;
  const int own = size > 0.0f ? __builtin_ilogbf(size) : -1000, exponent = own > 1 - bias ? own : 1 - bias;
  const int code = ((exponent + bias - 1) << mantissa) + (int)__builtin_rintf(__builtin_ldexpf(size, mantissa - exponent));
  return code > 0x7f ? 0x80 : code && x < 0.0f ? code | 0x80 : code;
}
#define ATTN_CONVERT_PAIR(NAME, MANTISSA, BIAS) \
  ATTN_INLINE int __builtin_amdgcn_cvt_pk_##NAME##_f32(float a, float b, int old, bool high) { \
    const unsigned pair = attn_emulated_byte(a, MANTISSA, BIAS) | attn_emulated_byte(b, MANTISSA, BIAS) << 8; \
    return (int)(high ? ((unsigned)old & 0xffffu) | pair << 16 : ((unsigned)old & 0xffff0000u) | pair); \
  }
ATTN_CONVERT_PAIR(fp8, 3, 8)
ATTN_CONVERT_PAIR(bf8, 2, 16)
#undef ATTN_CONVERT_PAIR

// ---- loads through a buffer of a given size: what is behind its end reads as zero, and is not touched
struct __amdgpu_buffer_rsrc_t {
  const char *base;
  unsigned bytes;
};
ATTN_INLINE __amdgpu_buffer_rsrc_t __builtin_amdgcn_make_buffer_rsrc(const void *base, short, long bytes, int) {
  return {(const char *)base, (unsigned)bytes};
}
template <typename T>
ATTN_INLINE T attn_emulated_buffer_load(__amdgpu_buffer_rsrc_t buffer, int lane_offset, int offset, const void *caller) {
  T result{};
  constexpr unsigned piece = sizeof(T) < 4 ? sizeof(T) : 4;
  for (unsigned i = 0; i < sizeof(T); i += piece) {
    uint64_t at = (uint64_t)(unsigned)lane_offset + (unsigned)offset + i;
    if (at + piece > buffer.bytes) continue;
    attn_emulated_access(buffer.base + at, piece, 0, caller);
    __builtin_memcpy((char *)&result + i, buffer.base + at, piece);
  }
  return result;
}
#define ATTN_BUFFER_LOAD(BITS, T) \
  __attribute__((no_sanitize("thread"), noinline, unused)) static T __builtin_amdgcn_raw_buffer_load_b##BITS( \
      __amdgpu_buffer_rsrc_t buffer, int lane_offset, int offset, int) { \
    return attn_emulated_buffer_load<T>(buffer, lane_offset, offset, __builtin_return_address(0)); \
  }
ATTN_BUFFER_LOAD(8, unsigned char)
ATTN_BUFFER_LOAD(16, unsigned short)
ATTN_BUFFER_LOAD(32, unsigned)
ATTN_BUFFER_LOAD(64, attn_emulated_uint2)
ATTN_BUFFER_LOAD(128, attn_emulated_uint4)
#undef ATTN_BUFFER_LOAD

namespace attn {
ATTN_INLINE void atomic_add(float *address, float x) { attn_emulated_atomic_add(address, x); }
ATTN_INLINE int opaque(int x) { return x; }
}  // namespace attn

// ---- how the runtime calls the kernel: with what pointers point to, in the order of its parameters
template <typename, size_t... I>
struct AttnEmulatedPlaces {};  // std::index_sequence, without the header
template <typename... T, size_t... I>
__attribute__((no_sanitize("thread"))) static void attn_emulated_call(void (*kernel)(T...), void **values, AttnEmulatedPlaces<size_t, I...>) {
  kernel(*(T *)values[I]...);
}
template <typename... T>
__attribute__((no_sanitize("thread"))) static void attn_emulated_call(void (*kernel)(T...), void **values) {
  attn_emulated_call(kernel, values, __make_integer_seq<AttnEmulatedPlaces, size_t, sizeof...(T)>());
}
template <typename... T>
static int attn_emulated_sizes(void (*)(T...), int *sizes) {
  int all[] = {(int)sizeof(T)..., 0};
  for (size_t i = 0; i < sizeof...(T); ++i) sizes[i] = all[i];
  return sizeof...(T);
}
#define ATTN_EMULATED_ENTRY(KERNEL) \
  extern "C" __attribute__((no_sanitize("thread"))) void attn_emulated_entry(void **values) { attn_emulated_call(KERNEL, values); } \
  extern "C" __attribute__((no_sanitize("thread"))) int attn_emulated_parameters(int *sizes) { return attn_emulated_sizes(KERNEL, sizes); }
