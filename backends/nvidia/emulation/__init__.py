"""`device="cuda-emulated"`: scheduled kernels for Hopper on tensors of the CPU, by the evaluator of the `warp` dialect."""

EMULATED = "cuda-emulated"
