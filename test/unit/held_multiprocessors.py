"""A kernel that has so many multiprocessors of a GPU to itself until it is told to end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.backends.nvidia.launch import PackedLaunch

_SHARED = 200_000
"""Bytes of shared memory that leave no room for a thread block of attention."""
_SOURCE = """
// flags[0]: end; flags[1 + n]: thread block n has begun. Ends by itself after 30 seconds.
extern "C" __global__ void hold(volatile int *flags) {
  extern __shared__ int memory[];
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  memory[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    flags[1 + blockIdx.x] = 1;
    do {
      __nanosleep(2000);
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (!flags[0] && now - begin < 30000000000ull);
  }
}
"""


def until(done: Callable[[], bool], seconds: float) -> bool:
    """Whether something is done within so many seconds."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(1e-3)
    return True


def multiprocessors() -> int:
    """Of the current GPU."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


@contextmanager
def held(count: int) -> Iterator[None]:
    """So many multiprocessors run nothing else meanwhile that needs shared memory."""
    code = KernelCode("hold", "hold", _SOURCE, (KernelParameter("pointer", 0),), 32, _SHARED)
    function = cuda.load_function(compile_code(code).code, "hold", _SHARED, torch.cuda.current_device())
    stream, flags = torch.cuda.Stream(), torch.zeros(1 + count, dtype=torch.int32).pin_memory()
    packed = PackedLaunch([("Q", flags.data_ptr())], cuda.config((count, 1, 1), 32, _SHARED, stream.cuda_stream))
    torch.cuda.synchronize()
    cuda.check(cuda.launcher()(packed.config, function, packed.parameters, None), "launching the kernel that holds multiprocessors")
    try:
        assert until(lambda: bool(flags[1:].all()), 5), "the multiprocessors are not free"
        yield
        assert not stream.query(), "held too short"
    finally:
        flags[0] = 1
        stream.synchronize()
