"""What the state of a scan gives to rows of o: its rounding, in registers, and the products of that and q."""

from dataclasses import dataclass, field

from attn_mlir.backends.nvidia.forming.chunk_leaving import LeavingFormer
from attn_mlir.backends.nvidia.forming.chunks import MOST_BLOCKS, SCALE, element_of, number_of, rounding_of, times
from attn_mlir.backends.nvidia.forming.kernel import ROWS
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import block_of, find_all

_TOGETHER, _PIECE = 128, 64
"""The most columns of a state that are rounded at once, and how many of wider ones are."""


@dataclass
class ChunkStateFormer(LeavingFormer):
    """S^T q^T, of which `late` lists the products. Where registers hold it beside the products of pairs, both are on their way together,
    and the state is rounded before tiles of the chunk are waited for.
    """

    rounded: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps that round the state, and those that make its residuals."""
    late: list[ir.Operation] = field(default_factory=list)
    """Products of q and the state, which begin behind those of pairs."""
    early: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    """Columns of the state that were rounded before tiles came."""

    def _flies(self) -> bool:
        """Whether registers hold products of the state beside those of pairs."""
        return self.occupancy < MOST_BLOCKS and self.columns <= _TOGETHER

    def _before_tiles(self) -> None:
        """Rounds the first columns of the state: behind the product of pairs nvcc would wait for it, as the state is a product's, too."""
        self.early = {}
        ops = [op for op in find_all(self.chunks, *DOTS) if op.operands[-1] in self.rounded]
        if self._flies() and ops:
            tiles, scale = self._pieces(ops)[0]
            self.early = self._lefts(tiles, self._value(self.carried), 0, scale)

    def _from_states(self) -> None:
        """Begins what waits for products of pairs: while weights are made, or, where registers are few, behind them."""
        if self.late:
            made = self._from_state(self.late)
            self.known.update((op.results[0], made) for op in self.late)
        self.late = []

    def _pieces(self, ops: list[ir.Operation]) -> list[tuple[list[ir.Value], float]]:
        """The roundings of the state that products multiply, those that are on their way together, and what the state is multiplied by.

        Residuals of f16 are 2^11 times as large as they are: they are multiplied first, and the sums are scaled back.
        """
        tiles = [op.operands[-1] for op in ops]
        apart = len(tiles) > 1 and str(ir.RankedTensorType(tiles[0].type).element_type) == "f16"
        return [(tiles[1:], SCALE), (tiles[:1], 1.0)] if apart else [(tiles, 1.0)]

    def _from_state(self, ops: list[ir.Operation]) -> ir.Value:
        """S^T q^T; of wide states some columns are rounded at a time, so that fewer registers hold what was rounded."""
        sums, q = None, self.loaded[ops[0].operands[-2]].memory
        for tiles, scale in self._pieces(ops):
            sums = self._by_parts(tiles, q, sums, scale)
            sums = sums if scale == 1.0 else times(sums, number_of(1 / scale))
        assert sums is not None
        return sums

    def _size(self, tiles: list[ir.Value]) -> int:
        """How many columns of the state are rounded at a time."""
        return self.columns if self.columns <= _TOGETHER else _PIECE

    def _lefts(self, tiles: list[ir.Value], state: ir.Value, first: int, scale: float) -> dict[tuple[ir.Value, int], ir.Value]:
        """Columns of the state, from number `first` on, as maps round them."""
        size = self._size(tiles)
        part = build.fragment_type(INSTRUCTION, "tile", [ROWS, size], ir.F32Type.get())
        columns = state if size == self.columns else build.op("columns", [state], [part], first=first).result
        lefts: list[ir.Value] = []
        for tile in tiles:
            lefts.append(self._rounded(tile, columns, (first, scale), *lefts))
        return {(tile, first): left for tile, left in zip(tiles, lefts, strict=True)}

    def _by_parts(self, tiles: list[ir.Value], q: ir.Value, sums: ir.Value | None, scale: float) -> ir.Value:
        """Adds the products of q and what maps make of the state."""
        size, state = self._size(tiles), self._value(self.carried)
        buffer, stage, row, _ = q.owner.operation.operands
        type_, made = ir.MemRefType(q.type), self._rows_of_o()
        own = ir.MemRefType.get([type_.shape[0], size], type_.element_type, memory_space=type_.memory_space)
        for first in range(0, self.columns, size):
            early = (tiles[0], first) in self.early
            lefts = self.early if early else self._lefts(tiles, state, first, scale)
            right = build.op("view", [buffer, stage, row, build.index(first)], [own]).result
            keep = [arith.ConstantOp(ir.IntegerType.get_signless(1), int(n > 0 or sums is not None)).result for n in range(len(tiles))]
            flying = sums if sums is not None else build.op("registers", results=[made]).result
            build.op("mma_begin")
            for tile, more in zip(tiles, keep, strict=True):
                flying = build.mma_async(flying, lefts[tile, first], right, more, (False, True))
            build.op("mma_commit")
            sums = build.mma_wait(flying, made, 0)
        assert sums is not None
        return sums

    def _rounded(self, tile: ir.Value, state: ir.Value, of: tuple[int, float], high: ir.Value | None = None) -> ir.Value:
        """Columns of the state, from number `first` on, as a map rounds them to elements of a tile; `scale` multiplies them before.

        Those of residuals are what rounding to `high` has left.
        """
        first, scale = of
        rounding, shape = block_of(self.rounded[tile]), ir.RankedTensorType(state.type).shape

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            def read(inner: ir.Operation) -> ir.Value:
                if list(inner.operands)[1:] != list(rounding.arguments):
                    raise Refused("a map reads the state at another place than its own")
                return element_of(state, i, j)

            places = [arith.AddIOp(build.index(first), j).result, arith.AddIOp(self.first, i).result][:: 1 if self.turned else -1]
            known = dict(zip(rounding.arguments, places, strict=True))
            if high is not None and tile in self.rests:
                known[rounding_of(self.rounded[tile])] = element_of(high, i, j)
            value = self._clone(rounding, known, read)
            if scale != 1.0:
                exact = arith.MulFOp(value.owner.operation.operands[0], number_of(scale)).result
                value = arith.TruncFOp(value.type, exact).result
            return [value]

        type_ = build.fragment_type(INSTRUCTION, "tile", shape, ir.RankedTensorType(tile.type).element_type)
        return build.map_(shape, [type_], [""], body)[0]
