"""Narrows kernels for NVIDIA GPUs to a part of the columns of v, or of all tensors where thread blocks of a cluster share these."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.passes.slice_values import SliceValues, retype
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.column_clusters import MOST, asked, cluster_of, is_made, narrow
from attn_mlir.backends.nvidia.tuning.choices import CLUSTER, choices_in
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class NvidiaSliceValues(SliceValues):
    """Gives v and o `columns` columns at most where they have more, as a warpgroup has registers for no more sums of 64 rows.

    On Hopper the thread blocks of a cluster share the columns of q, k, v and o where the rest of the pipeline makes such a kernel of the
    function, which a trial on a copy finds out: the choice "cluster" says how many thread blocks there are (1: never), and is
    an error where there is no such kernel.
    Elsewhere a kernel sees a slice of v. Weights, states and row outputs do not depend on v, and column c of o only on column c of v: so
    the same kernel makes every slice. The choices of the function say what a driver needs, "launch_values", which argument v is, and
    "launch_columns", how many columns a launch sees. Scores are computed again for each slice. Heads of q of more than 256 columns get
    blocks that fit into shared memory.
    """

    name = "nvidia-slice-values"

    def blocks(self, head: int) -> Fields:
        return dict(zip(("block_q", "block_kv"), wide_blocks(head), strict=True))

    def run(self, module: ir.Operation) -> bool:
        tuned = choices_in(module)
        return all(self._ask(function, asked(function, tuned)) for function in find_all(module, "func.func")) and super().run(module)

    def _ask(self, function: ir.Operation, parts: int | str | None) -> bool:
        """Gives a function the choice of so many thread blocks, where any is made; False after an error."""
        if parts is None:
            return True
        if parts not in range(1, MOST + 1):
            function.location.emit_error(f"{self.name}: 1 to {MOST} thread blocks can share columns ({CLUSTER}), not {parts}")
            return False
        if len([op for op in find_all(function, "attn.attention") if op.parent == function]) != 1:
            if parts != 1:
                function.location.emit_error(f"{self.name}: {parts} thread blocks ({CLUSTER}) share columns where there is one attention")
            return parts == 1
        choices = attributes.read(function, attributes.CHOICES)
        with function.context:
            function.attributes[attributes.CHOICES] = attributes.write({**choices, CLUSTER: int(parts)})
        return True

    def narrow(self, module: ir.Operation, function: ir.Operation, attention: ir.Operation) -> bool:
        cluster = cluster_of(function, attention) if self.columns == MAX_COLUMNS else None
        choices = attributes.read(function, attributes.CHOICES)
        if cluster is not None and cluster.parts > 1:
            before = narrow(function, attention, cluster, choices_in(module))
            if is_made(module, function, pipeline.SLICED):
                return True
            for value, type_ in before.items():
                value.set_type(type_)
            retype(function)
        if choices.get(CLUSTER, 1) != 1:
            attention.location.emit_error(f"{self.name}: no kernel is made whose columns {choices[CLUSTER]} thread blocks share")
            return False
        left = {name: value for name, value in choices.items() if name != CLUSTER}
        with function.context:
            if left:
                function.attributes[attributes.CHOICES] = attributes.write(left)
            elif attributes.CHOICES in function.attributes:
                del function.attributes[attributes.CHOICES]
        return super().narrow(module, function, attention)


def wide_blocks(head: int) -> tuple[int, int]:
    """Rows and keys of a block for heads of more than 256 columns: 227 KiB hold one tile of q and two of keys and of a slice of v."""
    return 64, 64 if head <= 384 else 32 if head <= 640 else 16
