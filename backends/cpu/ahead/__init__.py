"""Libraries made ahead of time for the CPU: the kernels that the JIT would run, and the host's part in C++."""
