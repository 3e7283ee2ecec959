"""The devices that the CPU stands for, by running source or machine code of kernels for AMD GPUs."""

EMULATED, INTERPRETED = "hip-emulated", "hip-interpreted"
ON_CPU = {f"{how}{chip}": arch for chip, arch in (("", "gfx90a"), ("-gfx942", "gfx942")) for how in (EMULATED, INTERPRETED)}
"""What kernels for a device are made for, by its name."""
