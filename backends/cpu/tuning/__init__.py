"""Tuning on the CPU: block sizes and threads, ranked by a model of the core, measured where the tensors are."""
