"""The pipelines of the CPU backend as text."""

LLVM = (
    "cpu-lower-tiles,cpu-guard-division,cpu-expand-math,cpu-expand-casts,canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,"
    "func.func(arith-expand{include-bf16=false}),convert-math-to-llvm,convert-math-to-libm,convert-vector-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
"""From tiles to the LLVM dialect; functions that only libm has take vectors apart, which is lowered in its turn."""


# Query rows of a block: two vectors of f32 on AVX-512, so that every number of a key or value that is read serves two multiplications. With
# one vector there would be a read for each of these, and read ports the limit (Intel Xeon: 100 instead of 130 of 166 GFLOP/s a core).
_BLOCK_Q, _BLOCK_KV = BLOCKS = 32, 64

FEW_ROWS = (16, _BLOCK_KV)
"""Block sizes for so few query rows that they fill no more than one vector."""

ONE_ROW = (1, _BLOCK_KV)
"""Those for a single one: vectors lie along the head dimension."""

# Chunks of linear attention: what a position costs beside the state grows with them, how often the state is read and written falls.
# Where channels have decays of their own, products of a chunk cost exponentials, too.
_CHUNK, _CHANNEL_CHUNK = 32, 16

OUTLINE = "attn-simplify,attn-apply-mods,attn-outline{share-states=true}"
"""The kernels of a derivative: scans of linear attention with the same states, for dk and dv, are one."""

DECAYS = "crossing=true interval=64 channel-interval=32"
"""How gradients of the log decays of linear attention are summed up: over the positions of a chunk, without differences."""


def online(chunk: int, channel_chunk: int) -> str:
    """From stage 0 to online or chunked form, with chunks of so many positions."""
    return (
        "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-fit-range,"
        f"attn-chunk-rewrite{{chunk={chunk} channel-chunk={channel_chunk}}},attn-guard-empty-rows"
    )


def _tiles(rows: int, keys: int) -> str:
    """From there to the scheduled kernel, with blocks of so many rows and keys."""
    return (
        f"cpu-numerics,attn-tile{{block-q={rows} block-kv={keys}}},canonicalize,cse,tile-load-windows,tile-add-windows,attn-choose-kept,"
        "tile-schedule{target=cpu}"
    )


ONLINE = online(_CHUNK, _CHANNEL_CHUNK)
"""From stage 0 to online or chunked form."""

_CHOOSE = f"cpu-choose-blocks{{rows={_BLOCK_Q} keys={_BLOCK_KV}}}"
TILES = f"{_CHOOSE},{_tiles(_BLOCK_Q, _BLOCK_KV)}"
"""From there to the scheduled kernel."""

KERNEL = f"{ONLINE},{TILES}"
"""From stage 0 to the scheduled kernel."""

STEP = f"{online(1, 1)},{TILES}"
"""The same for linear attention of a single position."""


def few_rows(rows: int, keys: int) -> str:
    """The same with blocks of few query rows, for short sequences of packed tensors."""
    return f"{ONLINE},{_tiles(rows, keys)}"


ALL = f"{KERNEL},{LLVM}"
"""From stage 0 to the LLVM dialect."""
