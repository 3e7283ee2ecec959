"""What the backends for GPUs share: scalar code as C++, cheaper arithmetic for pairs, and the contract between generators and drivers."""

from attn_mlir.backends import Backend

BACKEND = Backend(
    name="gpu",
    package="attn_mlir.backends.gpu",
    device_types=(),  # serves none: a library of the others
    passes={
        "gpu-lazy-rescale": "passes.lazy_rescale:LazyRescale",
        "gpu-fold-scale": "passes.fold_scale:FoldScale",
        "gpu-materialize-pairs": "passes.materialize_pairs:MaterializePairs",
        "gpu-materialize-rows": "passes.materialize_rows:MaterializeRows",
        "gpu-exp2": "passes.exp2:Exp2",
        "gpu-shift-exponents": "passes.shift_exponents:ShiftExponents",
        "gpu-merge-sums": "passes.merge_sums:MergeSums",
        "gpu-float-positions": "passes.float_positions:FloatPositions",
        "gpu-logistic": "passes.logistic:Logistic",
        "gpu-share-reciprocals": "passes.share_reciprocals:ShareReciprocals",
        "gpu-narrow-bounds": "passes.narrow_bounds:NarrowBounds",
        "gpu-narrow-comparisons": "passes.narrow_comparisons:NarrowComparisons",
        "gpu-row-terms": "passes.row_terms:RowTerms",
        "gpu-tanh": "passes.tanh:Tanh",
        "gpu-exact-jumps": "passes.exact_jumps:ExactJumps",
        "gpu-sink-factors": "passes.sink_factors:SinkFactors",
    },
)
