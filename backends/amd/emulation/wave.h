// What the emulated device code and the runtime that executes it agree on.
#pragma once
// C's headers, as in attn_amd_emulated.h: each kernel reads them.
#include <stddef.h>
#include <stdint.h>

#define ATTN_LANES 64

// Operations in which all lanes of a wave take part: a lane that does one waits for the 63 others.
enum AttnWaveKind : int {
  ATTN_MFMA_32_F16,
  ATTN_MFMA_32_BF16,
  ATTN_MFMA_16_F16,
  ATTN_MFMA_16_BF16,
  ATTN_MFMA_32_F32,
  ATTN_MFMA_16_F32,
  ATTN_MFMA_32_FP8,
  ATTN_MFMA_32_BF8,
  ATTN_BPERMUTE,
  ATTN_PERMUTE,
  ATTN_BALLOT,
  ATTN_READ_LANE,
  ATTN_DPP,
  ATTN_SWIZZLE,
  ATTN_WAVE_BARRIER,
};

struct AttnWaveOp {
  int kind;
  void *result;
  const void *a, *b, *c;
  long number;  // a byte address of a lane, a condition, a lane, or the control word of DPP and swizzle
};

struct AttnIndex {
  unsigned x, y, z;
};

extern "C" {
unsigned attn_emulated_thread();
AttnIndex attn_emulated_block();
__attribute__((convergent)) void attn_emulated_wave(AttnWaveOp *op);
__attribute__((convergent)) void attn_emulated_barrier();
void attn_emulated_access(const void *address, size_t bytes, int write, const void *caller);
void attn_emulated_atomic_add(float *address, float x);
}
