// Operations of a whole wave: matrix products, and exchanges between lanes.
#include <cmath>
#include <cstring>

#include "runtime.h"

namespace emulated {

namespace {

// MI200 takes and gives subnormal numbers of matrix products as zero.
float flushed(float x, float smallest) { return flush_subnormals && std::fabs(x) < smallest ? 0.0f : x; }

enum Element { F16, BF16, F32, FP8, BF8 };

// A byte of a type with one NaN in the place of -0, and so many bits of mantissa; none is flushed.
float byte(uint8_t code, int mantissa, int bias) {
  if (code == 0x80) return NAN;
  int exponent = code >> mantissa & (0x7f >> mantissa), digits = code & ((1 << mantissa) - 1);
  float size = std::ldexp((float)(exponent ? digits + (1 << mantissa) : digits), (exponent ? exponent : 1) - bias - mantissa);
  return code & 0x80 ? -size : size;
}

template <Element KIND>
float input(const void *elements, int i) {
  if (KIND == F32) return flushed(((const float *)elements)[i], 0x1p-126f);
  if (KIND == FP8) return byte(((const uint8_t *)elements)[i], 3, 8);
  if (KIND == BF8) return byte(((const uint8_t *)elements)[i], 2, 16);
  if (KIND == BF16) {
    uint32_t bits = (uint32_t)((const uint16_t *)elements)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return flushed(x, 0x1p-126f);
  }
  return flushed((float)((const _Float16 *)elements)[i], 0x1p-14f);
}

// D = A B + C with tiles of N rows and columns. Lane l holds row (or column) l % N of A (of B) at P places from P (l / N) along the
// summed dimension, four, one (f32) or eight (8 bits); of C and D it holds column l % N, rows in groups of 4.
template <int N, Element KIND>
void multiply(AttnWaveOp *const *ops) {
  constexpr int P = KIND == F32 ? 1 : KIND >= FP8 ? 8 : 4, K = P * (ATTN_LANES / N), REGISTERS = N * N / ATTN_LANES;
  static float a[N][K], b[K][N];
  for (int lane = 0; lane < ATTN_LANES; ++lane)
    for (int i = 0; i < P; ++i) {
      a[lane % N][P * (lane / N) + i] = input<KIND>(ops[lane]->a, i);
      b[P * (lane / N) + i][lane % N] = input<KIND>(ops[lane]->b, i);
    }
  static float product[N][N];
  for (int row = 0; row < N; ++row) {
    float sums[N] = {};
    for (int k = 0; k < K; ++k)
      for (int column = 0; column < N; ++column) sums[column] += a[row][k] * b[k][column];
    memcpy(product[row], sums, sizeof sums);
  }
  for (int lane = 0; lane < ATTN_LANES; ++lane)
    for (int r = 0; r < REGISTERS; ++r) {
      int row = N == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r;
      float sum = product[row][lane % N] + ((const float *)ops[lane]->c)[r];
      ((float *)ops[lane]->result)[r] = flushed(sum, 0x1p-126f);
    }
}

int value(const AttnWaveOp *op) { return *(const int *)op->a; }
void give(AttnWaveOp *op, int result) { *(int *)op->result = result; }

// The lane that DPP reads, or -1 where there is none and the result is zero; -2: not known.
int dpp_source(int lane, long control) {
  int row = lane & ~15, place = lane & 15, by = (int)control & 15;
  if (control < 0x100) return (lane & ~3) | (int)(control >> 2 * (lane & 3) & 3);
  if (control > 0x100 && control <= 0x10f) return place + by < 16 ? lane + by : -1;
  if (control > 0x110 && control <= 0x11f) return place >= by ? lane - by : -1;
  if (control > 0x120 && control <= 0x12f) return row | ((place - by) & 15);
  if (control == 0x140) return row | (15 - place);
  if (control == 0x141) return (lane & ~7) | (7 - (lane & 7));
  if (control >= 0x150 && control <= 0x15f) return row | by;
  return -2;
}

int swizzle_source(int lane, long pattern) {
  if (pattern & 0x8000) return (lane & ~3) | (int)(pattern >> 2 * (lane & 3) & 3);
  int within = (((lane & 31) & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
  return (lane & 32) | within;
}

std::string exchange(AttnWaveOp *const *ops, int (*source)(int, long)) {
  for (int lane = 0; lane < ATTN_LANES; ++lane) {
    int from = source(lane, ops[lane]->number);
    if (from == -2) return "control word " + std::to_string(ops[lane]->number) + " of an exchange is not known";
    give(ops[lane], from < 0 ? 0 : value(ops[from]));
  }
  return "";
}

int addressed(int, long address) { return (int)(address >> 2 & 63); }
int numbered(int, long lane) { return (int)lane; }

std::string permute(AttnWaveOp *const *ops) {
  for (int lane = 0; lane < ATTN_LANES; ++lane) give(ops[lane], 0);
  for (int lane = 0; lane < ATTN_LANES; ++lane) give(ops[addressed(lane, ops[lane]->number)], value(ops[lane]));
  return "";
}

std::string ballot(AttnWaveOp *const *ops) {
  uint64_t votes = 0;
  for (int lane = 0; lane < ATTN_LANES; ++lane) votes |= (uint64_t)(ops[lane]->number & 1) << lane;
  for (int lane = 0; lane < ATTN_LANES; ++lane) *(uint64_t *)ops[lane]->result = votes;
  return "";
}

}  // namespace

std::string execute(AttnWaveOp *const *ops) {
  switch (ops[0]->kind) {
    case ATTN_MFMA_32_F16: return multiply<32, F16>(ops), "";
    case ATTN_MFMA_32_BF16: return multiply<32, BF16>(ops), "";
    case ATTN_MFMA_16_F16: return multiply<16, F16>(ops), "";
    case ATTN_MFMA_16_BF16: return multiply<16, BF16>(ops), "";
    case ATTN_MFMA_32_F32: return multiply<32, F32>(ops), "";
    case ATTN_MFMA_16_F32: return multiply<16, F32>(ops), "";
    case ATTN_MFMA_32_FP8: return multiply<32, FP8>(ops), "";
    case ATTN_MFMA_32_BF8: return multiply<32, BF8>(ops), "";
    case ATTN_BPERMUTE: return exchange(ops, addressed);
    case ATTN_PERMUTE: return permute(ops);
    case ATTN_READ_LANE: return exchange(ops, numbered);
    case ATTN_DPP: return exchange(ops, dpp_source);
    case ATTN_SWIZZLE: return exchange(ops, swizzle_source);
    case ATTN_BALLOT: return ballot(ops);
    case ATTN_WAVE_BARRIER: return "";
  }
  return "operation " + std::to_string(ops[0]->kind) + " of a wave is not known";
}

}  // namespace emulated
