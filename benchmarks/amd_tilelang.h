// What TileLang's HIP takes from the headers of ROCm and from its own templates, for a compiler without either: names of types and threads,
// and reductions over the lanes of a wave. exp2 is one instruction, as in our kernels.
#include "attn_amd.h"

#define __global__ __attribute__((global))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define HUGE_VALF __builtin_huge_valf()

typedef _Float16 half_t;
typedef __bf16 bfloat16_t;
typedef unsigned char uchar;
typedef _Float16 float16x4 __attribute__((ext_vector_type(4)));
typedef short bfloat16x4_vec __attribute__((ext_vector_type(4)));
typedef float float32x4 __attribute__((ext_vector_type(4)));
struct half2 {
  half_t x, y;
};
struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
ATTN_DEVICE float2 make_float2(float x, float y) { return {x, y}; }
ATTN_DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
ATTN_DEVICE float max(float x, float y) { return __builtin_fmaxf(x, y); }
ATTN_DEVICE void __syncthreads() { attn::barrier(); }

// The number of the thread, and of the block.
struct Place {
  bool of_block;
  struct Axis {
    bool of_block;
    __device__ operator int() const { return of_block ? __builtin_amdgcn_workgroup_id_x() : __builtin_amdgcn_workitem_id_x(); }
  } x;
};
#define threadIdx (Place{false, {false}})
#define blockIdx (Place{true, {true}})

namespace tl {
struct MaxOp {
  __device__ float operator()(float x, float y) const { return max(x, y); }
};
struct SumOp {
  __device__ float operator()(float x, float y) const { return x + y; }
};
// Over lanes that lie `Step` apart, `Lanes` / `Step` of them.
template <typename Op, int Lanes, int Step, int First> struct AllReduce {
  static __device__ float run(float x, float *) {
    for (int step = Lanes / 2; step >= Step; step /= 2) x = Op()(x, attn::from_lane(x, (attn::thread() & 63) ^ step));
    return x;
  }
};
}  // namespace tl
