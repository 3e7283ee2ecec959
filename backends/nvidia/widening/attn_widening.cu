// Dense keys and values of 8 bits, widened to 16 bits in memory, both by one launch.

typedef unsigned long long attn_wide_size;

// See `widening/__init__.py`. Sizes are in eights of elements; the first `key_blocks` thread blocks have keys, the others values.
struct AttnWidening {
  const uint2 *keys, *values;
  uint4 *wide_keys, *wide_values;
  attn_wide_size key_size, value_size;
  int key_blocks;
};

enum AttnByte { E4M3, E5M2 };
enum AttnHalf { F16, BF16 };
// Two numbers of 8 bits as two of 16. f16 has all numbers of both types, and bf16 has those of f16 that come of them.
template <AttnByte Byte, AttnHalf Half> __device__ __forceinline__ unsigned attn_widened_pair(unsigned short pair) {
  unsigned wide;
  if (Byte == E4M3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(pair));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(wide) : "h"(pair));
  if (Half == BF16)
    asm("{\n.reg .b16 low, high;\n.reg .f32 first, second;\nmov.b32 {low, high}, %0;\ncvt.f32.f16 first, low;\ncvt.f32.f16 second, high;\n"
        "cvt.rn.bf16x2.f32 %0, second, first;\n}" : "+r"(wide));
  return wide;
}

// Threads beside each other read 8 bytes beside each other and write 16, so that whole sectors of memory are written.
template <AttnByte Byte, AttnHalf Half> __device__ __forceinline__ void attn_widen(const AttnWidening &f) {
  constexpr int kEach = 8;
  const bool keys = blockIdx.x < unsigned(f.key_blocks);
  const uint2 *const from = keys ? f.keys : f.values;
  uint4 *const to = keys ? f.wide_keys : f.wide_values;
  const attn_wide_size size = keys ? f.key_size : f.value_size;
  const attn_wide_size first = attn_wide_size(keys ? blockIdx.x : blockIdx.x - f.key_blocks) * (blockDim.x * kEach) + threadIdx.x;
  uint2 words[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const attn_wide_size at = first + attn_wide_size(i) * blockDim.x;
    if (at < size) words[i] = from[at];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const attn_wide_size at = first + attn_wide_size(i) * blockDim.x;
    if (at >= size) continue;
    uint4 wide;
    wide.x = attn_widened_pair<Byte, Half>(static_cast<unsigned short>(words[i].x));
    wide.y = attn_widened_pair<Byte, Half>(static_cast<unsigned short>(words[i].x >> 16));
    wide.z = attn_widened_pair<Byte, Half>(static_cast<unsigned short>(words[i].y));
    wide.w = attn_widened_pair<Byte, Half>(static_cast<unsigned short>(words[i].y >> 16));
    to[at] = wide;
  }
}

extern "C" __global__ void attn_widen_e4m3_f16(const AttnWidening f) { attn_widen<E4M3, F16>(f); }
extern "C" __global__ void attn_widen_e4m3_bf16(const AttnWidening f) { attn_widen<E4M3, BF16>(f); }
extern "C" __global__ void attn_widen_e5m2_f16(const AttnWidening f) { attn_widen<E5M2, F16>(f); }
extern "C" __global__ void attn_widen_e5m2_bf16(const AttnWidening f) { attn_widen<E5M2, BF16>(f); }
