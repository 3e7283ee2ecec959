"""Passes over tile IR that make the arithmetic of pairs cheaper on GPUs."""
