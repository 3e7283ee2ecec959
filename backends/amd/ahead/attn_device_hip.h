// What attn_device.h needs of HIP, without ROCm's headers.
#define __device__ __attribute__((device))
using Half = _Float16;
using BFloat = __bf16;
#define ATTN_GLOBAL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256))) void
#define ATTN_INLINE static __device__ inline __attribute__((always_inline))
ATTN_INLINE long long attn_thread() { return __builtin_amdgcn_workgroup_id_x() * 256ll + __builtin_amdgcn_workitem_id_x(); }
ATTN_INLINE float attn_wide(Half x) { return x; }
ATTN_INLINE float attn_wide(BFloat x) { return x; }

