"""What the warpgroups of a sweep do with one chunk.

With S the state [keys, values], b sums of log decays: A = q k^T, of which each warpgroup makes its share of columns; P = A times its
weights goes to shared memory; o^T = S^T q^T (S^T as operand in registers), scaled, + v^T P^T; S^T = S^T times its factor + (v enter)^T k.
o^T leaves, transposed on its way, through the shared memory of v.
"""

from attn_mlir.backends.gpu.structure import body, operations, widened, yielded
from attn_mlir.backends.nvidia.hopper.core import PANELS, Core
from attn_mlir.backends.nvidia.hopper.sweep_forms import view_of
from attn_mlir.backends.nvidia.hopper.sweep_layout import ALL, PANEL_BYTES, SweepLayout, varies
from attn_mlir.backends.nvidia.hopper.sweep_mods import TileMods
from attn_mlir.backends.nvidia.hopper.sweep_producer import bind_sums
from attn_mlir.backends.nvidia.hopper.sweep_products import ProductSums
from attn_mlir.backends.nvidia.hopper.sweep_read import CHUNK, PANEL, Sweep
from attn_mlir.backends.nvidia.hopper.sweep_state import StatePrinter
from attn_mlir.backends.nvidia.hopper.wgmma import wgmma_name

_RESTS = {"f16": "pack_rest_f16", "bf16": "pack_rest_bf16"}
_HELD = 8
"""Steps along K whose part of the state is rounded at a time (4 registers each)."""


class ChunkPrinter:
    """Prints the work on a chunk."""

    def __init__(self, core: Core, sweep: Sweep, layout: SweepLayout, states: StatePrinter) -> None:
        self._core, self._sweep, self._layout, self._states = core, sweep, layout, states
        self._mods, self._sums = TileMods(core, sweep, layout), ProductSums(core, sweep, layout)
        self._share = CHUNK // layout.warpgroups
        self._pack = f"attn::{PANELS[sweep.element]}"
        self._unpack = f"attn::un{PANELS[sweep.element]}"
        self._rest = f"attn::{_RESTS[sweep.element]}"
        self._entered = ("entering", "remaining") if sweep.exact else ("entering",)

    def declare(self) -> None:
        """The thread's place."""
        self._core.writer.line(
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;",
            "const int row = 16 * warp + lane / 4, column = lane % 4 * 2;",
            "const bool leader = threadIdx.x % 128 == 0;",
            "// Of matrices that are transposed on their way: this lane's row of 16 bytes in a panel, for columns of matrices c and c + 1.",
            "const int turned_row = lane / 16 * 8 + lane % 8, turned_column = (16 * warp + lane / 8 % 2 * 8) * 2;",
        )

    def print(self) -> None:
        """One chunk."""
        core, writer, layout = self._core, self._core.writer, self._layout
        stages = layout.stages
        writer.line(f"const int stage = number % {stages};")
        writer.line(*layout.addresses())
        writer.line(f"attn::barrier_wait(shared + kFull + 8 * stage, number / {stages} & 1);")
        if self._sweep.total is not None:
            last = core.names.fresh("last")
            writer.line(f"const float {last} = attn::load_shared(rows + {layout.rows['sums'] + 4 * (CHUNK - 1)});")
            core.scalars.bind(self._sweep.total, last)
        self._states.keep(before=True)
        self._mods.print(self._unpack, self._pack)
        self._weights()
        writer.line("attn::fence_proxy_async();", "if (leader) attn::bulk_wait_read<0>();", f"attn::named_sync({ALL}, {layout.consumers});")
        free = f"attn::barrier_arrive(shared + kFree + 8 * ((number - 1) % {stages}));"
        writer.line(f"if (threadIdx.x == 0 && number > 0) {free}")
        self._from_state()
        self._from_chunk()
        self._advance()
        self._states.keep(before=False)

    def finish(self) -> None:
        """After the last chunk."""
        self._core.writer.line("if (leader) attn::bulk_wait<0>();")

    # ---- the chunk's own pairs

    def _weights(self) -> None:
        """A, its weights, and P in shared memory."""
        core, writer, sweep, layout = self._core, self._core.writer, self._sweep, self._layout
        share, steps = self._share, sweep.keys // 16
        product = self._instruction(share, "shared")
        q, k = layout.tiles["q"].offset, layout.tiles["k"].offset
        with core.scope(""):
            writer.line(f"float scores[{share // 2}];")
            writer.line(f"const uint64_t left = attn::k_major(at + {q}), right = attn::k_major(at + {k} + warpgroup * {share * 128});")
            writer.line("attn::wgmma_begin();")
            with writer.unrolled("k", steps):
                writer.line(f"const uint32_t offset = k / 4 * {PANEL_BYTES} + k % 4 * 32;")
                writer.line(f"{product}(scores, attn::advance(left, offset), attn::advance(right, offset), k > 0);")
            writer.line("attn::wgmma_commit();")
            writer.line(f"const int from = warpgroup * {share} + column;")
            rows = self._at_rows()
            writer.line("attn::wgmma_wait<0>();", "attn::hold(scores);")
            with core.unrolled("c", share // 8, 2):
                writer.line("uint32_t packed[4];")
                with core.unrolled("d", 2):
                    columns = self._at_columns()
                    with core.unrolled("h", 2):
                        writer.line("float pair[2];")
                        with core.unrolled("e", 2):
                            writer.line(f"pair[e] = {self._weight(rows, columns)};")
                        writer.line(f"packed[2 * d + h] = {self._pack}(pair[0], pair[1]);")
                writer.line(
                    f"const int place = (16 * warp + lane / 8 % 2 * 8 + lane % 8) * 128 + (warpgroup * {share} + 8 * (c + lane / 16)) * 2;",
                    f"attn::store_matrices({layout.weights} + attn::swizzle_128(place), packed[0], packed[1], packed[2], packed[3]);",
                )

    def _at_rows(self) -> dict[str, str]:
        """Values of this thread's two rows: sums and factors."""
        core, layout, found = self._core, self._layout, {}
        for name in ("sums", "left"):
            if name in layout.rows and (name != "sums" or self._sweep.prefix is not None):
                found[name] = core.names.fresh(f"row_{name}")
                reads = [f"attn::load_shared(rows + {layout.rows[name]} + 4 * (row{f' + {8 * h}' if h else ''}))" for h in range(2)]
                core.writer.line(f"const float {found[name]}[2] = {{{', '.join(reads)}}};")
        return found

    def _at_columns(self) -> dict[str, str]:
        """Values of two columns."""
        core, layout, found = self._core, self._layout, {}
        for name in ("sums", "right"):
            if name in layout.rows and (name != "sums" or self._sweep.prefix is not None):
                found[name] = core.names.fresh(f"column_{name}")
                core.writer.line(f"const float2 {found[name]} = attn::load_shared2(rows + {layout.rows[name]} + 4 * (from + 8 * (c + d)));")
        return found

    def _weight(self, rows: dict[str, str], columns: dict[str, str]) -> str:
        """An element of P before it is rounded."""
        core, sweep = self._core, self._sweep
        op = sweep.weights
        score = "scores[4 * (c + d) + 2 * h + e]"
        if "left" in rows:
            score += f" * {rows['left']}[h]"
        for value in sweep.q.factors:
            if not varies(value):
                score += f" * {core.value(value)}"
        if "right" in columns:
            score += f" * (e ? {columns['right']}.y : {columns['right']}.x)"
        at = ("(row + 8 * h)", "(from + 8 * (c + d) + e)")
        for argument, text in zip(body(op).arguments, at, strict=True):
            core.scalars.bind(argument, text)
        if "sums" in rows:
            bind_sums(core, sweep, op, [f"{rows['sums']}[h]", f"(e ? {columns['sums']}.y : {columns['sums']}.x)"])
        for inner in operations(body(op)):
            if inner.name == "tensor.extract" and inner.operands[0] == sweep.scores:
                core.scalars.bind(inner.results[0], f"({score})")
        (value,) = yielded(body(op))
        return core.value(widened(value))

    # ---- o

    def _from_state(self) -> None:
        """o^T = S^T q^T, its columns scaled."""
        core, writer, layout = self._core, self._core.writer, self._layout
        steps, product = self._sweep.keys // 16, self._instruction(CHUNK, "registers")
        parts = ("held", "rest") if self._sweep.exact else ("held",)
        held = min(steps, _HELD // len(parts) if steps <= _HELD else _HELD // 2 // len(parts))
        writer.line(f"float o[{CHUNK // 2}];")
        with core.scope(""):
            writer.line(f"const uint64_t right = attn::k_major(at + {layout.tiles['q'].offset});")
            with core.unrolled("first", steps, held):
                writer.line(*(f"uint32_t {name}[{4 * held}];" for name in parts))
                with writer.unrolled("n", 4 * held):
                    pair = "state[8 * first + 2 * n], state[8 * first + 2 * n + 1]"
                    writer.line(f"held[n] = {self._pack}({pair});")
                    if self._sweep.exact:
                        writer.line(f"rest[n] = {self._rest}(held[n], {pair});")
                writer.line(*(f"attn::hold({name});" for name in parts), "attn::wgmma_begin();")
                with writer.unrolled("k", held):
                    writer.line(f"const uint32_t offset = (first + k) / 4 * {PANEL_BYTES} + (first + k) % 4 * 32;")
                    for name in parts:
                        operand = ", ".join(f"{name}[4 * k + {n}]" for n in range(4))
                        more = "first + k > 0" if name == "held" else "1"
                        writer.line(f"{product}(o, {operand}, attn::advance(right, offset), {more});")
                writer.line(
                    "attn::wgmma_commit();", "attn::wgmma_wait<0>();", "attn::hold(o);", *(f"attn::hold({name});" for name in parts)
                )
        with writer.unrolled("c", CHUNK // 8):
            writer.line(
                f"const float2 factor = attn::load_shared2(rows + {layout.rows['leave']} + 4 * (column + 8 * c));",
                "o[4 * c] *= factor.x, o[4 * c + 1] *= factor.y, o[4 * c + 2] *= factor.x, o[4 * c + 3] *= factor.y;",
            )

    def _from_chunk(self) -> None:
        """o^T += v^T P^T; meanwhile the state is scaled."""
        core, writer, sweep, layout = self._core, self._core.writer, self._sweep, self._layout
        product = self._instruction(CHUNK, "shared", transpose_a=True)
        writer.line(f"const uint32_t own = at + {layout.tiles['v'].offset} + warpgroup * {PANEL_BYTES};")
        writer.line("attn::hold(o);")
        with core.scope(""):
            writer.line(f"const uint64_t left = attn::mn_major(own, {PANEL_BYTES}), right = attn::k_major({layout.weights});")
            writer.line("attn::wgmma_begin();")
            with writer.unrolled("k", CHUNK // 16):
                writer.line(f"{product}(o, attn::advance(left, k * 2048), attn::advance(right, k * 32), 1);")
            writer.line("attn::wgmma_commit();")
        with core.scope(""):
            for argument in body(sweep.carry).arguments:
                core.scalars.bind(argument, "0")
            factor = core.value(yielded(body(sweep.carry))[0])
            with writer.unrolled("c", sweep.keys // 2):
                writer.line(f"state[c] *= {factor};")
        self._entering()
        writer.line("attn::wgmma_wait<0>();", "attn::hold(o);")

    def _entering(self) -> None:
        """(v enter)^T as operand in registers."""
        writer, layout = self._core.writer, self._layout
        writer.line(*(f"uint32_t {name}[{CHUNK // 16}][4];" for name in self._entered))
        with writer.unrolled("k", CHUNK // 16):
            writer.line("attn::load_transposed(own + attn::swizzle_128((16 * k + turned_row) * 128 + turned_column), entering[k]);")
            with writer.unrolled("d", 2):
                writer.line(f"const float2 factor = attn::load_shared2(rows + {layout.rows['enter']} + 4 * (16 * k + 8 * d + column));")
                with writer.unrolled("h", 2):
                    writer.line(
                        f"const float2 pair = {self._unpack}(entering[k][2 * d + h]);",
                        f"entering[k][2 * d + h] = {self._pack}(pair.x * factor.x, pair.y * factor.y);",
                    )
                    if self._sweep.exact:
                        scaled = "pair.x * factor.x, pair.y * factor.y"
                        writer.line(f"remaining[k][2 * d + h] = {self._rest}(entering[k][2 * d + h], {scaled});")

    def _advance(self) -> None:
        """The state's product, while o leaves."""
        core, writer, sweep, layout = self._core, self._core.writer, self._sweep, self._layout
        product = self._instruction(sweep.keys, "registers", transpose_b=True)
        writer.line("attn::hold(state);")
        self._hold_entering()
        with core.scope(""):
            writer.line(f"const uint64_t right = attn::mn_major(at + {layout.tiles['k'].offset}, {PANEL_BYTES});")
            writer.line("attn::wgmma_begin();")
            with writer.unrolled("k", CHUNK // 16):
                for name in self._entered:
                    operand = ", ".join(f"{name}[k][{n}]" for n in range(4))
                    writer.line(f"{product}(state, {operand}, attn::advance(right, k * 2048), 1);")
            writer.line("attn::wgmma_commit();")
        self._sums.add(self._unpack)
        self._leave()
        writer.line("attn::wgmma_wait<0>();", "attn::hold(state);")
        self._hold_entering()

    def _hold_entering(self) -> None:
        writer = self._core.writer
        with writer.unrolled("k", CHUNK // 16):
            writer.line(*(f"attn::hold({name}[k]);" for name in self._entered))

    def _leave(self) -> None:
        """o^T to the memory of v, and from there to o; TMA leaves out rows past the end."""
        core, writer, output = self._core, self._core.writer, self._sweep.output
        together = "attn::named_sync(2 + warpgroup, 128);"
        writer.line(together if self._sweep.products is None else f"attn::named_sync({ALL}, {self._layout.consumers});")
        with writer.block("#pragma unroll\n  for (int c = 0; c < 8; c += 2)".replace("\n  ", f"\n{writer.indent}")):
            words = [f"{self._pack}(o[4 * c + {n}], o[4 * c + {n + 1}])" for n in (0, 2, 4, 6)]
            writer.line("attn::store_transposed(own + attn::swizzle_128((8 * c + turned_row) * 128 + turned_column),")
            writer.line(*(f"                       {word}{',' if n < 3 else ');'}" for n, word in enumerate(words)))
        writer.line("attn::fence_proxy_async();", together)
        self._sums.flush()
        view = view_of(output.operands[1])
        batch, head, first = (core.value(value) for value in list(output.operands)[2:5])
        column = f"{core.value(view.column)} + " if view.column is not None else ""
        descriptor = core.arguments.descriptor(view.argument, PANEL, CHUNK)
        with writer.block("if (leader)"):
            writer.line(
                f"attn::tma_store({descriptor}, own, {column}warpgroup * {PANEL}, {first}, {head}, {batch});", "attn::bulk_commit();"
            )

    def _instruction(self, n: int, a: str, transpose_a: bool = False, transpose_b: bool = False) -> str:
        """The function that is a matrix instruction."""
        element = self._sweep.element
        self._core.uses("", n, a, element, transpose_b=transpose_b, transpose_a=transpose_a)
        return f"attn::{wgmma_name(n, a, element, transpose_a, transpose_b)}"
