"""Tiles that all threads change where they are: mods that are more than factors of rows, and rows of another sequence."""

from attn_mlir.backends.gpu.structure import body, maker, operations, widened, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_common import ALL, ATOM, ATOM_BYTES, CHUNK
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan
from attn_mlir.mlir import ir


class TileMods:
    """Prints the passes over the tiles of a stage."""

    def __init__(self, core: Core, scan: ChunkScan, layout: ScanLayout) -> None:
        self._core, self._scan, self._layout = core, scan, layout

    def print(self, unpack: str, pack: str) -> None:
        """Changes the tiles; `unpack` and `pack` are functions between two 16-bit numbers and f32."""
        writer, found = self._core.writer, False
        for name, source in self._scan.inputs.items():
            if source.mod is not None:
                found = True
                self._tile(source.mod, source.columns // 8, self._layout.tiles[name].offset, (unpack, pack))
        # wgmma of every warpgroup reads what all threads changed.
        meet = ("attn::fence_proxy_async();", f"attn::named_sync({ALL}, {self._layout.consumers});")
        if self._scan.packed:
            self._cut(() if found else meet)
        if found:
            writer.line(*meet)

    def _cut(self, meet: tuple[str, ...]) -> None:
        """Rows of k and v that belong to the next sequence are 0: its numbers, infinities say, must not meet the zeros of weights."""
        core, writer, count = self._core, self._core.writer, self._core.value(self._scan.count)
        with core.scope(f"if ({count} < {CHUNK})"):
            for name in ("k", "v"):
                source = self._scan.inputs[name]
                if source.mod is not None:
                    continue
                vectors, tile = source.columns // 8, self._layout.tiles[name].offset
                with core.scope(f"for (int n = {count} * {vectors} + threadIdx.x; n < {CHUNK * vectors}; n += {self._layout.consumers})"):
                    place = f"n % {vectors} / 8 * {ATOM_BYTES} + attn::swizzle_128(n / {vectors} * 128 + n % 8 * 16)"
                    writer.line(f"attn::store_shared_int4(at + {tile} + {place}, 0, 0, 0, 0);")
            writer.line(*meet)

    def _tile(self, op: ir.Operation, vectors: int, offset: int, convert: tuple[str, str]) -> None:
        """8 elements at a time. Rows that do not exist are 0, whatever the mod makes of them."""
        core, writer, (unpack, pack) = self._core, self._core.writer, convert
        count = core.value(self._scan.count)
        n = {name: core.names.fresh(name) for name in ("i", "j", "place", "address", "words", "word", "pair", "made")}
        head = f"for (int {n['place']} = threadIdx.x; {n['place']} < {CHUNK * vectors}; {n['place']} += {self._layout.consumers})"
        with core.scope(head):
            writer.line(f"const int {n['i']} = {n['place']} / {vectors}, {n['j']} = {n['place']} % {vectors} * 8;")
            place = f"{n['j']} / {ATOM} * {ATOM_BYTES} + attn::swizzle_128({n['i']} * 128 + {n['j']} % {ATOM} * 2)"
            words = ", ".join(f"(uint32_t){n['words']}.{part}" for part in "xyzw")
            writer.line(
                f"const uint32_t {n['address']} = at + {offset} + {place};",
                f"const int4 {n['words']} = attn::load_shared_int4({n['address']});",
                f"uint32_t {n['word']}[4] = {{{words}}};",
            )
            with core.unrolled("n", 4):
                writer.line(f"const float2 {n['pair']} = {unpack}({n['word']}[n]);", f"float {n['made']}[2];")
                for e, part in enumerate("xy"):
                    with core.scope(""):
                        self._bind(op, (n["i"], f"({n['j']} + 2 * n + {e})"), f"{n['pair']}.{part}")
                        value = core.value(widened(yielded(body(op))[0]))
                        writer.line(f"{n['made']}[{e}] = {n['i']} < {count} ? {value} : 0.0f;")
                writer.line(f"{n['word']}[n] = {pack}({n['made']}[0], {n['made']}[1]);")
            stored = ", ".join(f"{n['word']}[{k}]" for k in range(4))
            writer.line(f"attn::store_shared_int4({n['address']}, {stored});")

    def _bind(self, op: ir.Operation, at: tuple[str, str], element: str) -> None:
        scalars = self._core.scalars
        for argument, text in zip(body(op).arguments, at, strict=True):
            scalars.bind(argument, text)
        for inner in operations(body(op)):
            read = maker(inner.operands[0]) if inner.name == "arith.extf" else None
            if read is not None and read.name == "tensor.extract":
                scalars.bind(inner.results[0], element)
