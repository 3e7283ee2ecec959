"""Makes the libraries of `test_ahead_gpu.py` on a machine with compilers: `python test/unit/ahead_gpu_files.py FOLDER`."""

import sys
from pathlib import Path

import attn_mlir
from ahead_cuda_cases import CASES

if __name__ == "__main__":
    for name, (attention, spec, _, more) in CASES.items():
        made = attn_mlir.compile_ahead(attention, spec, "sm_90a", Path(sys.argv[1]) / f"lib{name}.so", **more)
        print(made.library)
