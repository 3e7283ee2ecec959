"""NVRTC, CUDA's compiler as a library: machine code of kernels in this process, without a toolkit.

`library` finds it and calls it; the headers here are what it has instead of the toolkit's.
"""
