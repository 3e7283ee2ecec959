"""Recognises chunk scans whose key channels have decays of their own: kernels of grid "chunks" with a `tile.decay_channels`."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.prepared_read import PreparedScan, steps_of
from attn_mlir.backends.nvidia.hopper.scan_common import CHUNK, final_of, initial_of, is_packed, loop_of, states_of
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile, input_of, is_copy, known, made, need, rank
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir


@dataclass(kw_only=True)
class ChannelScan(PreparedScan):
    """One kernel. `made` is its `tile.decay_channels`; `mods` are the maps that make q and k of what is loaded, by name.

    Without `store` only the state is of use, and q is k.
    """

    mods: dict[str, ir.Operation]

    @property
    def operands(self) -> dict[str, InputTile]:
        """q and k by name, as far as they are of use."""
        return {"k": self.k} if self.store is None else {"q": self.q, "k": self.k}

    @property
    def leaving(self) -> str:
        """Which operand of pairs q is: "late", or "early" where the scan is reversed."""
        return "early" if self.reverse else "late"

    @property
    def entering(self) -> str:
        """Which operand of pairs k is."""
        return "late" if self.reverse else "early"


def read_channels(kernel: ir.Operation) -> ChannelScan | None:
    """The scan that a kernel is; None for a kernel of another form."""
    return known(channels_of, kernel)


def channels_of(kernel: ir.Operation) -> ChannelScan:
    """The scan that a kernel is. Raises OtherKernelError for a kernel of another form."""
    loop = loop_of(kernel)
    inner, (_, state) = operations(body(loop)), body(loop).arguments
    found = [op for op in inner if op.name == "tile.decay_channels"]
    need(len(found) == 1)
    q, k, decays, count = found[0].operands
    leaving, entering, pairs, chunk_decay = found[0].results
    following = made(yielded(body(loop))[0], "tile.dot_rescale")
    values = following.operands[3]
    need(list(following.operands) == [state, chunk_decay, entering, values])
    need(flag(following, "transpose_a") and not flag(following, "transpose_b"))
    stores = [op for op in inner if op.name == "tile.store" and op.operands[0] not in (state, following.results[0])]
    need(len(stores) <= 1)
    rows = _rows(stores[0], (leaving, state, pairs, values)) if stores else []
    need(bool(rows) or (q == k and not any(True for value in (leaving, pairs) for _ in value.uses)))
    steps, loaded = steps_of(decays)
    states, branch = states_of(inner, state, following.results[0])
    operands = [("q", q), ("k", k)] if stores else [("k", k)]
    inputs = {"q": input_of(q), "k": input_of(k), "v": input_of(values)}
    scan = ChannelScan(
        kernel=kernel, loop=loop, state=state, following=following.results[0], initial=initial_of(loop), k=inputs["k"], v=inputs["v"],
        packed=is_packed(kernel), transposed=False, states=states, branch=branch, final=final_of(operations(body(kernel)), loop),
        made=found[0], q=inputs["q"], steps=steps, decays=loaded,
        mods={name: made(value, "tile.map") for name, value in operands if value != inputs[name].load.results[0]},
        store=stores[0] if stores else None,
    )  # fmt: skip
    used = [found[0], following, *rows, steps, branch if branch is not None else states]
    used += [*scan.mods.values(), *scan.loads]
    scan.check(CHUNK, inner, used)
    need(scan.count == count and not scan.v.factors and scan.v.mod is None)
    return scan


def _rows(store: ir.Operation, of: tuple[ir.Value, ...]) -> list[ir.Operation]:
    """The ops that make rows of o of what leaves, the state, pairs and v, and store them."""
    leaving, state, pairs, values = of
    need(rank(store.operands[0]) == 2)
    rows = made(store.operands[0], "tile.dot_add")
    first = made(rows.operands[0], "tile.dot")
    held = made(first.operands[1], "tile.map")
    need(list(rows.operands)[1:] == [pairs, values] and first.operands[0] == leaving and is_copy(held, state))
    need(not any(flag(op, name) for op in (rows, first) for name in ("transpose_a", "transpose_b")))
    return [rows, first, held, store]
