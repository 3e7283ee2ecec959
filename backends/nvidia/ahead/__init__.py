"""Libraries made ahead of time for NVIDIA GPUs: the kernels as cubins, and the host's part, which calls the driver, in C++."""
