"""The pipelines of the CPU backend as text."""

LLVM = (
    "cpu-lower-tiles,cpu-guard-division,cpu-expand-math,canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,"
    "func.func(arith-expand{include-bf16=false}),convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


# Sixteen query rows fill one vector of f32 on AVX-512 and two on AVX2. More rows reuse each key more often, but measured no
# faster (keys come from the L1 and L2 caches), and waste lanes on short sequences.
_BLOCK_Q, _BLOCK_KV = 16, 64

# Chunks of linear attention: what a position costs beside the state grows with them, how often the state is read and written falls.
# Where channels have decays of their own, products of a chunk cost exponentials, too.
_CHUNK, _CHANNEL_CHUNK = 32, 16
_LINEAR = "sub-chunk=4 prefix=f64 balanced=true widen=true straight=true"


def kernel(chunk: int, channel_chunk: int) -> str:
    """From stage 0 to the scheduled kernel, with chunks of so many positions."""
    return (
        f"attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-chunk-rewrite{{chunk={chunk} channel-chunk={channel_chunk}}},"
        f"attn-guard-empty-rows,attn-tile{{block-q={_BLOCK_Q} block-kv={_BLOCK_KV} {_LINEAR}}},"
        "canonicalize,cse,tile-schedule{target=cpu}"
    )


KERNEL = kernel(_CHUNK, _CHANNEL_CHUNK)
"""From stage 0 to the scheduled kernel."""

STEP = kernel(1, 1)
"""The same for linear attention of a single position."""

ALL = f"{KERNEL},{LLVM}"
"""From stage 0 to the LLVM dialect."""
