// Finds generated kernels by their traits, runs them forward and backward, and compares with the formula in double: odd lengths, grouped
// heads, rows that the mask leaves no keys.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "attn_fmha.h"

namespace {

constexpr int64_t B = 2, HQ = 4, HKV = 2, D = 32;

struct Array {
  std::vector<float> data;
  std::vector<int64_t> shape;
  DLTensor tensor{};
  // What a call does not write shows: NAN.
  explicit Array(std::vector<int64_t> sizes, double step = 0) : shape(std::move(sizes)) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    data.resize(size_t(count));
    for (size_t i = 0; i < data.size(); ++i) data[i] = step != 0 ? float(2 * std::sin(step * double(i) + step)) : NAN;
    tensor = {data.data(), {kDLCPU, 0}, int32_t(shape.size()), {kDLFloat, 32, 1}, shape.data(), nullptr, 0};
  }
  Array(const Array &) = delete;
  double at(int64_t b, int64_t h, int64_t s, int64_t d) const { return data[size_t(((b * shape[1] + h) * shape[2] + s) * shape[3] + d)]; }
};

int failures = 0;

void check(int32_t code, const char *what) {
  if (code == ATTN_MLIR_OK) return;
  std::fprintf(stderr, "%s: error %d: %s\n", what, int(code), attn_fmha_last_error());
  ++failures;
}

void compare(const std::string &what, const std::vector<double> &wanted, const Array &made, double tolerance) {
  double most = 0;
  bool same = wanted.size() == made.data.size();
  for (size_t i = 0; same && i < wanted.size(); ++i) {
    double a = wanted[i], b = made.data[i];
    if (std::isinf(a) || std::isinf(b)) same = a == b;
    else if (!(std::fabs(a - b) <= tolerance * (1 + std::fabs(a)))) same = false;
    else most = std::fmax(most, std::fabs(a - b));
  }
  std::printf("%s: %s, largest difference %.1e\n", what.c_str(), same ? "right" : "WRONG", most);
  if (!same) ++failures;
}

struct Dense {
  std::vector<double> o, lse, d_q, d_k, d_v;
};

// Softmax over the keys j with -left <= j - i - (Skv - Sq) <= 0 and, where d_o is given, its gradients.
Dense dense(const Array &q, const Array &k, const Array &v, int64_t left, const Array *d_o) {
  int64_t SQ = q.shape[2], SK = k.shape[2];
  Dense made{std::vector<double>(q.data.size()), std::vector<double>(size_t(B * HQ * SQ)), std::vector<double>(q.data.size()),
             std::vector<double>(k.data.size()), std::vector<double>(v.data.size())};
  double scale = 1 / std::sqrt(double(D));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < HQ; ++h)
      for (int64_t i = 0; i < SQ; ++i) {
        int64_t g = h / (HQ / HKV), row = (b * HQ + h) * SQ + i;
        std::vector<double> p(size_t(SK), 0);
        double most = -INFINITY, sum = 0;
        auto kept = [&](int64_t j) { int64_t d = j - i - (SK - SQ); return d <= 0 && d >= -left; };
        for (int64_t j = 0; j < SK; ++j) {
          if (!kept(j)) continue;
          for (int64_t d = 0; d < D; ++d) p[size_t(j)] += scale * q.at(b, h, i, d) * k.at(b, g, j, d);
          most = std::fmax(most, p[size_t(j)]);
        }
        for (int64_t j = 0; j < SK; ++j) sum += p[size_t(j)] = kept(j) ? std::exp(p[size_t(j)] - most) : 0;
        made.lse[size_t(row)] = sum > 0 ? most + std::log(sum) : -INFINITY;
        double delta = 0;
        for (int64_t j = 0; j < SK; ++j) {
          p[size_t(j)] = sum > 0 ? p[size_t(j)] / sum : 0;
          for (int64_t d = 0; d < D; ++d) made.o[size_t(row * D + d)] += p[size_t(j)] * v.at(b, g, j, d);
        }
        for (int64_t d = 0; d_o && d < D; ++d) delta += d_o->at(b, h, i, d) * made.o[size_t(row * D + d)];
        for (int64_t j = 0; d_o && j < SK; ++j) {
          int64_t key = ((b * HKV + g) * SK + j) * D;
          double dp = -delta;
          for (int64_t d = 0; d < D; ++d) dp += d_o->at(b, h, i, d) * v.at(b, g, j, d);
          for (int64_t d = 0; d < D; ++d) {
            made.d_v[size_t(key + d)] += p[size_t(j)] * d_o->at(b, h, i, d);
            made.d_k[size_t(key + d)] += p[size_t(j)] * dp * scale * q.at(b, h, i, d);
            made.d_q[size_t(row * D + d)] += p[size_t(j)] * dp * scale * k.at(b, g, j, d);
          }
        }
      }
  return made;
}

void window(int64_t SQ, int64_t SK, const char *mask, int64_t left) {
  Array q({B, HQ, SQ, D}, 1.1), k({B, HKV, SK, D}, 1.7), v({B, HKV, SK, D}, 0.3), o({B, HQ, SQ, D}), lse({B, HQ, SQ});
  attn_fmha_traits traits{};
  traits.dtype = "fp32", traits.head_dim = D, traits.mask = mask, traits.lse = 1;
  attn_fmha_args args{};
  args.q = &q.tensor, args.k = &k.tensor, args.v = &v.tensor, args.o = &o.tensor, args.lse = &lse.tensor;
  check(attn_fmha_fwd(traits, args), mask);
  Dense wanted = dense(q, k, v, left, nullptr);
  std::string what = std::string(mask) + " " + std::to_string(SQ) + "x" + std::to_string(SK);
  compare(what + " o", wanted.o, o, 1e-5);
  compare(what + " lse", wanted.lse, lse, 1e-5);
}

void backward(int64_t SQ, int64_t SK) {
  Array q({B, HQ, SQ, D}, 1.1), k({B, HKV, SK, D}, 1.7), v({B, HKV, SK, D}, 0.3), o({B, HQ, SQ, D}), d_o({B, HQ, SQ, D}, 0.7);
  Array d_q({B, HQ, SQ, D}), d_k({B, HKV, SK, D}), d_v({B, HKV, SK, D});
  attn_fmha_traits traits{};
  traits.dtype = "fp32", traits.head_dim = D, traits.mask = "b";
  attn_fmha_args args{};
  args.q = &q.tensor, args.k = &k.tensor, args.v = &v.tensor, args.o = &o.tensor;
  attn_mlir_sizes sizes{};
  check(attn_fmha_sizes(&traits, &args, 1, &sizes), "sizes");
  std::vector<char> saved(sizes.saved);
  args.saved = saved.data(), args.saved_size = saved.size();
  check(attn_fmha_training_fwd(traits, args), "training_fwd");
  args.d_o = &d_o.tensor, args.d_q = &d_q.tensor, args.d_k = &d_k.tensor, args.d_v = &d_v.tensor;
  check(attn_fmha_bwd(traits, args), "bwd");
  Dense wanted = dense(q, k, v, 1 << 30, &d_o);
  std::string what = "backward " + std::to_string(SQ) + "x" + std::to_string(SK);
  compare(what + " o", wanted.o, o, 1e-5);
  compare(what + " d_q", wanted.d_q, d_q, 2e-5);
  compare(what + " d_k", wanted.d_k, d_k, 2e-5);
  compare(what + " d_v", wanted.d_v, d_v, 2e-5);
}

// An instance with functions of its own: what they capture is given by name.
void own(int64_t SQ, int64_t SK) {
  constexpr int64_t DV = 16;
  Array q({B, HQ, SQ, D}, 1.1), k({B, HKV, SK, D}, 1.7), v({B, HKV, SK, DV}, 0.3), o({B, HQ, SQ, DV}), weights({HQ}, 0.9);
  attn_fmha_traits traits{};
  traits.dtype = "fp32", traits.head_dim = D, traits.value_dim = DV, traits.row = "own", traits.variant = "cubed";
  attn_fmha_value value{};
  value.name = "weights", value.tensor = &weights.tensor;
  attn_fmha_args args{};
  args.q = &q.tensor, args.k = &k.tensor, args.v = &v.tensor, args.o = &o.tensor, args.values = &value, args.value_count = 1;
  check(attn_fmha_fwd(traits, args), "own");
  std::vector<double> wanted(o.data.size());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < HQ; ++h)
      for (int64_t i = 0; i < SQ; ++i)
        for (int64_t j = 0; j < SK; ++j) {
          double s = 0;
          for (int64_t d = 0; d < D; ++d) s += q.at(b, h, i, d) * k.at(b, h / 2, j, d) / std::sqrt(double(D));
          s = std::fmax(s * weights.data[size_t(h)], 0);
          for (int64_t d = 0; d < DV; ++d) wanted[size_t(((b * HQ + h) * SQ + i) * DV + d)] += s * s * s * v.at(b, h / 2, j, d);
        }
  compare("own " + std::to_string(SQ) + "x" + std::to_string(SK) + " o", wanted, o, 1e-4);
}

}  // namespace

int main() {
  for (int32_t i = 0; i < attn_fmha_count(); ++i) std::printf("%s\n", attn_fmha_name(i));
  window(1, 1, "b:64,0", 64);
  window(1, 127, "b:64,0", 64);
  window(17, 127, "b:30,0", 30);
  window(127, 17, "b:3,0", 3);  // the first 110 rows have no keys
  window(1000, 1000, "b:64,0", 64);
  backward(1, 17);
  backward(127, 17);
  backward(127, 301);
  own(17, 127);
  attn_fmha_traits traits{};
  traits.dtype = "fp32", traits.head_dim = D, traits.mask = "t", traits.lse = 1;
  attn_fmha_args args{};
  int32_t code = attn_fmha_fwd(traits, args);
  std::printf("error %d: %s\n", int(code), attn_fmha_last_error());
  if (code != ATTN_FMHA_ERROR_INSTANCE) ++failures;
  return failures ? 1 : 0;
}
