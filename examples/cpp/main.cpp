// Attention without Python: reads arrays, runs a library made ahead of time forward and backward, compares with what Python computed.
#include "invented.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// A dense array of float32 with its shape.
struct Array {
  std::vector<int64_t> shape;
  std::vector<float> data;

  explicit Array(std::vector<int64_t> of) : shape(std::move(of)) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    data.assign(size_t(count), NAN);  // what is not written shows
  }

  DLTensor view() {
    DLTensor tensor{};
    tensor.data = data.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = int32_t(shape.size());
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape.data();  // strides stay NULL: dense
    return tensor;
  }
};

// Reads numpy's format, as far as numpy.save writes it for float32: a line of text such as {'descr': '<f4', 'shape': (2, 4), }, then numbers.
Array read(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  char start[10];
  if (!file.read(start, 10) || std::memcmp(start, "\x93NUMPY\x01", 7)) throw std::runtime_error(path + " is no array of numpy");
  std::string header(size_t(uint8_t(start[8]) + 256 * uint8_t(start[9])), ' ');
  file.read(header.data(), std::streamsize(header.size()));
  bool fits = header.find("'<f4'") != std::string::npos && header.find("'fortran_order': False") != std::string::npos;
  size_t at = header.find("'shape': (");
  if (!fits || at == std::string::npos) throw std::runtime_error(path + " is no dense array of float32");
  std::vector<int64_t> shape;
  for (const char *p = header.c_str() + at + 10; *p != ')';) {
    char *end;
    int64_t size = std::strtoll(p, &end, 10);
    if (end == p) ++p;
    else shape.push_back(size), p = end;
  }
  Array array(shape);
  if (!file.read(reinterpret_cast<char *>(array.data.data()), std::streamsize(array.data.size() * sizeof(float))))
    throw std::runtime_error(path + " is too short");
  return array;
}

void check(int32_t code) {
  if (code != ATTN_MLIR_OK) throw std::runtime_error("error " + std::to_string(code) + ": " + invented_last_error());
}

bool same(const char *name, const Array &made, const Array &wanted) {
  bool equal = made.data.size() == wanted.data.size() && !std::memcmp(made.data.data(), wanted.data.data(), made.data.size() * sizeof(float));
  std::cout << name << (equal ? ": the bits of Python" : ": DIFFERS from Python") << "\n";
  return equal;
}

bool run(const std::string &folder, int32_t threads) {
  Array q = read(folder + "/q.npy"), k = read(folder + "/k.npy"), v = read(folder + "/v.npy"), slopes = read(folder + "/slopes.npy");
  Array d_o = read(folder + "/d_o.npy");
  DLTensor tq = q.view(), tk = k.view(), tv = v.view(), ts = slopes.view(), tdo = d_o.view();

  attn_mlir_sizes sizes;
  check(invented_sizes(&tq, &tk, &tv, &ts, &sizes));
  std::cout << "saved for the backward pass: " << sizes.saved << " bytes, its workspace: " << sizes.backward_workspace << " bytes\n";

  // Inference: a workspace of NULL is taken from the system.
  Array inference(q.shape);
  DLTensor to = inference.view();
  auto begin = std::chrono::steady_clock::now();
  check(invented_forward(&tq, &tk, &tv, &ts, &to, nullptr, 0, nullptr, threads));
  std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::cout << "forward: " << took.count() << " ms\n";

  // Training, in memory of our own.
  Array o(q.shape), d_q(q.shape), d_k(k.shape), d_v(v.shape), d_slopes(slopes.shape);
  std::vector<char> saved(sizes.saved), workspace(std::max(sizes.training_workspace, sizes.backward_workspace));
  DLTensor too = o.view(), tdq = d_q.view(), tdk = d_k.view(), tdv = d_v.view(), tds = d_slopes.view();
  check(invented_training_forward(&tq, &tk, &tv, &ts, &too, saved.data(), saved.size(), workspace.data(), workspace.size(), nullptr, threads));
  check(invented_backward(&tq, &tk, &tv, &ts, &too, saved.data(), saved.size(), &tdo, &tdq, &tdk, &tdv, &tds, workspace.data(),
                          workspace.size(), nullptr, threads));

  bool equal = same("inference", inference, read(folder + "/inference.npy"));
  equal = same("o", o, read(folder + "/o.npy")) && equal;
  equal = same("d_q", d_q, read(folder + "/d_q.npy")) && equal;
  equal = same("d_k", d_k, read(folder + "/d_k.npy")) && equal;
  equal = same("d_v", d_v, read(folder + "/d_v.npy")) && equal;
  return same("d_slopes", d_slopes, read(folder + "/d_slopes.npy")) && equal;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    return run(argc > 1 ? argv[1] : "files", argc > 2 ? std::atoi(argv[2]) : 0) ? 0 : 1;
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
