// Runs a package of AOTInductor whose attentions are operators of a library, without Python: FOLDER LIBRARY BATCH LENGTH. q, k and v,
// [BATCH, 2, LENGTH, 8], are read from FOLDER, results written there, as bytes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

int main(int count, char **given) {
  if (count != 5) return 2;
  std::string folder = given[1];
  if (!dlopen(given[2], RTLD_NOW)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  torch::inductor::AOTIModelPackageLoader package(folder + "/aoti.pt2");
  std::vector<at::Tensor> inputs;
  for (const char *name : {"q", "k", "v"}) {
    at::Tensor x = at::empty({std::stol(given[3]), 2, std::stol(given[4]), 8});
    std::ifstream file(folder + "/" + name + ".bin", std::ios::binary);
    file.read(static_cast<char *>(x.data_ptr()), x.nbytes());
    inputs.push_back(x);
  }
  try {
    int number = 0;
    for (const at::Tensor &each : package.run(inputs)) {
      at::Tensor x = each.contiguous();
      std::ofstream file(folder + "/out" + std::to_string(number++) + ".bin", std::ios::binary);
      file.write(static_cast<const char *>(x.data_ptr()), x.nbytes());
    }
    bool python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
    std::printf("%d results, %s\n", number, python ? "with Python" : "without Python");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
