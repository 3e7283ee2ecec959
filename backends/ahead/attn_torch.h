// The operator `attn_mlir::forward` for processes without Python, through PyTorch's stable ABI: what it is asked for by the text of a program
// is a function of this library.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace attn_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// One program. `run` takes q, k, v, captured tensors, floats and integers, and writes the results.
struct Operator {
  const char *program;
  int32_t (*run)(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *tensors, const double *floats, const int64_t *ints,
                 DLTensor *results);
  const char *(*error)(void);
  size_t tensors, floats, ints;
  int rows;       // results besides o
  bool linear;    // then the other result is a state
  int sequences;  // which captured tensor has the offsets of sequences, or -1
};

inline DLDataType type_of(const Tensor &x) {
  switch (x.scalar_type()) {
    case ScalarType::Half: return {kDLFloat, 16, 1};
    case ScalarType::BFloat16: return {kDLBfloat, 16, 1};
    case ScalarType::Float: return {kDLFloat, 32, 1};
    case ScalarType::Double: return {kDLFloat, 64, 1};
    case ScalarType::Bool: return {kDLBool, 8, 1};
    case ScalarType::Byte: return {kDLUInt, 8, 1};
    case ScalarType::Char: return {kDLInt, 8, 1};
    case ScalarType::Short: return {kDLInt, 16, 1};
    case ScalarType::Int: return {kDLInt, 32, 1};
    case ScalarType::Long: return {kDLInt, 64, 1};
    default: STD_TORCH_CHECK(false, "attn_mlir::forward takes no tensors of this dtype");
  }
  return {};
}

// A tensor as DLPack describes it, which must outlive this.
struct Described {
  std::vector<int64_t> shape, strides;
  DLTensor tensor{};
  explicit Described(const Tensor &x) {
    for (int64_t d = 0; d < x.dim(); ++d) shape.push_back(x.size(d)), strides.push_back(x.stride(d));
    tensor.data = x.data_ptr();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = int32_t(shape.size());
    tensor.dtype = type_of(x);
    tensor.shape = shape.data(), tensor.strides = strides.data();
  }
};

// Kernels read heads whose elements lie side by side.
inline Tensor readable(const Tensor &x) {
  int64_t last = x.dim() - 1;
  return x.dim() == 4 && x.size(last) != 1 && x.stride(last) != 1 ? torch::stable::contiguous(x) : x;
}

inline Tensor new_heads(const Tensor &q, const std::string &order, int64_t b, int64_t h, int64_t s, int64_t d) {
  using torch::stable::new_empty;
  using torch::stable::transpose;
  if (order == "bshd") return transpose(new_empty(q, std::vector<int64_t>{b, s, h, d}), 1, 2);
  if (order == "sbhd") return transpose(transpose(new_empty(q, std::vector<int64_t>{s, b, h, d}), 0, 1), 1, 2);
  return new_empty(q, std::vector<int64_t>{b, h, s, d});
}

inline std::vector<Tensor> forward(const Operator *operators, size_t count, const Tensor &q, const Tensor &k, const Tensor &v,
                                   const std::vector<Tensor> &captures, const std::vector<double> &floats, const std::vector<int64_t> &ints,
                                   const std::string &program, const std::string &wrt, const std::string &layout) {
  const Operator *found = nullptr;
  for (size_t i = 0; i < count && !found; ++i)
    if (program == operators[i].program) found = &operators[i];
  STD_TORCH_CHECK(found, "this library has no attention of this graph: make it again with attn_mlir.compile_operators");
  STD_TORCH_CHECK(wrt.empty(), "attn_mlir::forward computes no gradients here: export the model under torch.no_grad()");
  STD_TORCH_CHECK(captures.size() >= found->tensors && floats.size() == found->floats && ints.size() == found->ints,
                  "attn_mlir::forward has other captures than its program");
  STD_TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q, k and v must have 4 dimensions");
  std::vector<Tensor> kept = {readable(q), readable(k), readable(v)}, results;
  for (size_t i = 0; i < found->tensors; ++i) kept.push_back(found->linear ? readable(captures[i]) : captures[i]);
  std::string order = layout.size() > 4 ? layout.substr(layout.size() - 4) : layout;
  ScalarType score = q.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  results.push_back(new_heads(q, order, q.size(0), found->linear ? v.size(1) : q.size(1), q.size(2), v.size(3)));
  for (int i = 0; i < found->rows; ++i) {
    std::vector<int64_t> shape = {q.size(0), q.size(1), q.size(2)};
    if (found->linear) {
      int64_t states = found->sequences < 0 ? q.size(0) : captures[size_t(found->sequences)].size(0) - 1;
      shape = {states, v.size(1), q.size(3), v.size(3)};
    }
    results.push_back(torch::stable::new_empty(q, shape, score));
  }
  std::vector<Described> given, made;
  std::vector<DLTensor> inputs, outputs;
  for (const Tensor &each : kept) given.emplace_back(each);
  for (const Tensor &each : results) made.emplace_back(each);
  for (Described &each : given) each.tensor.shape = each.shape.data(), each.tensor.strides = each.strides.data(), inputs.push_back(each.tensor);
  for (Described &each : made) each.tensor.shape = each.shape.data(), each.tensor.strides = each.strides.data(), outputs.push_back(each.tensor);
  int32_t code = found->run(&inputs[0], &inputs[1], &inputs[2], inputs.data() + 3, floats.data(), ints.data(), outputs.data());
  STD_TORCH_CHECK(code == 0, found->error());
  return results;
}

}  // namespace attn_torch
