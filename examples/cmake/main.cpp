// Computes an attention on the CPU, and compares it with the formula; with a library for a GPU also tells what that one needs.
#include <cmath>
#include <cstdio>
#include <vector>

#include "nearer.h"
#ifdef HAS_GPU
#include "nearer_gpu.h"
#endif

namespace {

constexpr int64_t B = 1, H = 2, S = 37, D = 32;
constexpr double kSlope = 0.125;

struct Array {
  std::vector<float> data;
  std::vector<int64_t> shape;
  DLTensor tensor{};
  explicit Array(std::vector<int64_t> sizes, DLDeviceType device = kDLCPU, uint8_t bits = 32) : shape(std::move(sizes)) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    data.resize(size_t(count));
    tensor = {data.data(), {device, 0}, int32_t(shape.size()), {kDLFloat, bits, 1}, shape.data(), nullptr, 0};
  }
  double at(int64_t h, int64_t s, int64_t d) const { return data[size_t((h * S + s) * D + d)]; }
};

// The largest difference from the formula, in double.
double difference(const Array &q, const Array &k, const Array &v, const Array &o) {
  double most = 0;
  for (int64_t h = 0; h < H; ++h)
    for (int64_t i = 0; i < S; ++i) {
      std::vector<double> sums(D);
      double total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (int64_t d = 0; d < D; ++d) score += q.at(h, i, d) * k.at(h, j, d);
        double weight = std::exp(score / std::sqrt(double(D)) + kSlope * double(j - i));
        total += weight;
        for (int64_t d = 0; d < D; ++d) sums[size_t(d)] += weight * v.at(h, j, d);
      }
      for (int64_t d = 0; d < D; ++d) most = std::fmax(most, std::fabs(sums[size_t(d)] / total - o.at(h, i, d)));
    }
  return most;
}

}  // namespace

int main() {
  Array q({B, H, S, D}), k({B, H, S, D}), v({B, H, S, D}), o({B, H, S, D}), lse({B, H, S});
  for (size_t i = 0; i < q.data.size(); ++i) {
    q.data[i] = std::sin(float(i)), k.data[i] = std::sin(1.7f * float(i)), v.data[i] = std::cos(0.3f * float(i));
  }
  if (nearer_forward(&q.tensor, &k.tensor, &v.tensor, kSlope, &o.tensor, &lse.tensor, nullptr, 0, nullptr, 0)) {
    std::fprintf(stderr, "error: %s\n", nearer_last_error());
    return 2;
  }
  double found = difference(q, k, v, o);
  std::printf("largest difference from the formula: %.1e\n", found);
#ifdef HAS_GPU
  Array x({B, H, S, 64}, GPU_DEVICE, 16);
  attn_mlir_sizes sizes{};
  if (nearer_gpu_sizes(&x.tensor, &x.tensor, &x.tensor, kSlope, &sizes)) {
    std::fprintf(stderr, "error: %s\n", nearer_gpu_last_error());
    return 2;
  }
  std::printf("on the GPU the backward pass needs %zu bytes\n", sizes.backward_workspace);
#endif
  return found < 1e-5 ? 0 : 1;
}
