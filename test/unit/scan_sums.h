// Sums of matrix instructions, for scan_emulation.h: compiled once and optimised, where kernels are compiled quickly and run once.
#pragma once
#include <stdint.h>

// sum += a b of mma.m16n8k16, the four numbers of a lane; `slots` has the factors of its warp: four words of a, two of b.
extern "C" void mma_sums(bool f16, float *sum, const uint32_t (*slots)[6], int lane);
// d = a b, or d += a b, of wgmma, a in registers, the numbers of a lane. Where b lies in shared memory is told by scan_emulation.h's descriptors.
extern "C" void wgmma_sums(
    bool f16, bool turned, int accumulate, float *d, int count, const uint32_t (*slots)[4], int lane, const unsigned char *memory, uint64_t b);
// The same with both factors in shared memory, rows along the depth: 16 rows of a for each warp.
extern "C" void wgmma_shared_sums(bool f16, int accumulate, float *d, int count, int warp, int lane, const unsigned char *memory, uint64_t a, uint64_t b);
