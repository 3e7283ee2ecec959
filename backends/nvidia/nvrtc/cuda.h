// What generated kernels use of CUDA's cuda.h, for NVRTC, which brings no headers.
#pragma once

struct alignas(128) CUtensorMap {
  unsigned long long opaque[16];
};
