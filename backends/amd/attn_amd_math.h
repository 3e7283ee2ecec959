// Scalar functions in f32: those of the hardware, and others made of them. A part of attn_amd.h.
#pragma once

namespace attn {

// ---- scalar functions

ATTN_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
ATTN_DEVICE float log2(float x) { return __builtin_amdgcn_logf(x); }
ATTN_DEVICE float exp(float x) { return exp2(x * 1.44269504f); }
ATTN_DEVICE float log(float x) { return log2(x) * 0.693147181f; }
ATTN_DEVICE float log10(float x) { return log2(x) * 0.301029996f; }
ATTN_DEVICE float sqrt(float x) { return __builtin_amdgcn_sqrtf(x); }
ATTN_DEVICE float rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
ATTN_DEVICE float absolute(float x) { return __builtin_fabsf(x); }
ATTN_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// The same for two numbers at once.
#define ATTN_PAIRED(name) \
  ATTN_DEVICE Float2 name(Float2 x) { return Float2{name(x.x), name(x.y)}; }
ATTN_PAIRED(exp2) ATTN_PAIRED(log2) ATTN_PAIRED(exp) ATTN_PAIRED(log) ATTN_PAIRED(sqrt) ATTN_PAIRED(rsqrt) ATTN_PAIRED(absolute)
template <typename A, typename B, typename C> ATTN_DEVICE Float2 fma(A a, B b, C c) { return a * b + c; }
ATTN_DEVICE Float2 pair_at(const unsigned char *values, int number) {
  return Float2{((const float *)values)[number], ((const float *)values)[number + 1]};
}
ATTN_DEVICE Float2 positions(float first, int number) { return first + Float2{(float)number, (float)(number + 1)}; }
ATTN_DEVICE Float2 pair_of(const Float16x &x, int c) { return Float2{x[c], x[c + 1]}; }
ATTN_DEVICE void set_pair(Float16x &x, int c, Float2 pair) {
  x[c] = pair.x;
  x[c + 1] = pair.y;
}

// Functions that the hardware lacks, with an error of a few units in the last place relative to the larger of 1 and the result, unless
// another one is told. NaN stays NaN.
ATTN_DEVICE float half_turn_sine(float x) {  // of |x| <= pi / 2
  const float u = x * x;
  return x * fma(fma(fma(fma(fma(-2.3889779e-08f, u, 2.75253046e-06f), u, -1.98408612e-04f), u, 8.33333097e-03f), u, -0.166666672f), u, 1.0f);
}
ATTN_DEVICE float sine(float x) {  // of |x| <= pi: the angle has been reduced
  const float y = absolute(x);
  return half_turn_sine(__builtin_copysignf(y > 1.57079633f ? 3.14159265f - y : y, x));
}
ATTN_DEVICE float cosine(float x) { return half_turn_sine(1.57079633f - absolute(x)); }
ATTN_DEVICE float atan_of_one(float x) {  // of |x| <= 1
  const float u = x * x;
  float y = fma(fma(2.90347007e-03f, u, -1.62826814e-02f), u, 4.30388413e-02f);
  y = fma(fma(fma(y, u, -7.53363222e-02f), u, 0.106546573f), u, -0.142071292f);
  return x * fma(fma(fma(y, u, 0.199930534f), u, -0.333330929f), u, 1.0f);
}
ATTN_DEVICE float atan(float x) {
  return absolute(x) <= 1.0f ? atan_of_one(x) : __builtin_copysignf(1.57079633f, x) - atan_of_one(1.0f / x);
}
ATTN_DEVICE float atan2(float y, float x) {
  const float a = absolute(y), b = absolute(x);
  const float slope = a == b ? 1.0f : (a < b ? a / b : b / a), first = atan_of_one(a == 0.0f && b == 0.0f ? 0.0f : slope);
  const float angle = a > b ? 1.57079633f - first : first;
  const float turned = __builtin_signbit(x) ? 3.14159265f - angle : angle;
  return x != x || y != y ? x + y : __builtin_copysignf(turned, y);
}
ATTN_DEVICE float asin(float x) { return atan2(x, sqrt((1.0f - x) * (1.0f + x))); }
ATTN_DEVICE float acos(float x) { return atan2(sqrt((1.0f - x) * (1.0f + x)), x); }
ATTN_DEVICE float scaled_erfc(float x) {  // exp(x^2) erfc(x) of x >= 0.5
  const float t = 1.0f / (1.0f + x);
  float y = fma(fma(fma(-0.123901173f, t, 1.20592582f), t, -3.42925644f), t, 4.50794601f);
  y = fma(fma(fma(y, t, -2.73892164f), t, 0.249063522f), t, 0.195294112f);
  return fma(fma(fma(y, t, 0.572874427f), t, 0.563704431f), t, 1.15477442e-05f);
}
ATTN_DEVICE float erf(float x) {
  const float y = absolute(x), u = x * x;
  if (y > 1.0f) return __builtin_copysignf(1.0f - exp(-u) * scaled_erfc(y), x);
  float p = fma(fma(7.88911493e-05f, u, -8.02083989e-04f), u, 5.18953521e-03f);
  p = fma(fma(fma(p, u, -2.68544443e-02f), u, 0.112836003f), u, -0.37612626f);
  return x * fma(p, u, 1.12837911f);
}
ATTN_DEVICE float erfc(float x) {  // relative error 1e-5 up to x = 9
  const float y = absolute(x);
  if (y < 0.5f) return 1.0f - erf(x);
  const float tail = exp(-x * x) * scaled_erfc(y);
  return x < 0.0f ? 2.0f - tail : tail;
}
ATTN_DEVICE float expm1(float x) {
  if (!(absolute(x) < 0.4f)) return exp(x) - 1.0f;
  return x * fma(fma(fma(fma(fma(1.39684451e-03f, x, 8.38107523e-03f), x, 4.16659117e-02f), x, 0.166663796f), x, 0.5f), x, 1.0f);
}
ATTN_DEVICE float log1p(float x) {
  const float y = 1.0f + x, rest = y - 1.0f;
  return rest == 0.0f ? x : absolute(x) > 1e9f ? log(y) : log(y) * (x / rest);
}
ATTN_DEVICE float sinh(float x) {
  const float u = x * x, e = exp(absolute(x));
  if (u < 1.0f) return x * fma(fma(fma(2.03996766e-04f, u, 8.32982734e-03f), u, 0.166667372f), u, 1.0f);
  return __builtin_copysignf(0.5f * (e - 1.0f / e), x);
}
ATTN_DEVICE float cosh(float x) {
  const float e = exp(absolute(x));
  return 0.5f * (e + 1.0f / e);
}
ATTN_DEVICE float cbrt(float x) {
  const float size = exp2(log2(absolute(x)) * 0.333333333f);
  return x == 0.0f ? x : __builtin_copysignf(size, x);
}

}  // namespace attn
