"""Tuning on AMD GPUs: block sizes, ranked by a model of the compute unit. Nothing here was measured on an AMD GPU."""
