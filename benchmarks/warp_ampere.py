"""Forward kernels for sm_80 of the `warp` dialect beside TileLang's, compiled ahead: checked against float64, then timed in turn.

python benchmarks/warp_ampere.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc); needs TileLang
python benchmarks/warp_ampere.py run FOLDER      on a GPU of compute capability 8.0 or more: needs torch and the driver alone

Newer chips run the PTX that comes along with code for sm_80; their driver compiles it at the first launch. Backward passes: the kinds
"sm80..." of `warp_backward.py`.
"""

from warp_forward import DIMS, build_one, parsed, run

KINDS: dict[str, dict[str, int | str]] = {
    "tilelang": {"emitter": "tilelang"},
    "warp": {"emitter": "warp"},
    "rows16": {"emitter": "warp", "warp_rows": 16},
    "stages1": {"emitter": "warp", "stages": 1},
    "stages3": {"emitter": "warp", "stages": 3},
}
"""TileLang's kernels; those that passes form; with 16 rows a warp for all head dimensions; without copies ahead, and two blocks ahead."""


def main() -> None:
    """Reads the command line."""
    options = parsed(__doc__, KINDS, "tilelang")
    if options.what == "run":
        run(options.folder, options.rounds, options.kinds, options.cases, "tilelang")
        return
    for name in options.cases:
        for dim in DIMS:
            for kind in options.kinds:
                build_one(options.folder / f"{kind}-{name}-{dim}", name, dim, {"arch": "sm_80", **KINDS[kind]})


if __name__ == "__main__":
    main()
