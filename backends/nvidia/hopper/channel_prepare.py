"""What the preparing warps of a scan with decays of channels do: from log decays, q and k of a chunk to the operands of its products.

They work on swizzle atoms of 64 channels, which the copy engine loads ahead. See `attn_channels.cuh` for the arithmetic.
"""

from attn_mlir.backends.gpu.structure import body, widened, yielded
from attn_mlir.backends.nvidia.hopper.channel_layout import STAGES, WARPS, ChannelLayout, place_of
from attn_mlir.backends.nvidia.hopper.channel_read import ChannelScan
from attn_mlir.backends.nvidia.hopper.channel_steps import bind_place, load_decays, print_steps
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, ATOM_BYTES, CHUNK, bind_position
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile, varies, view_of

_TOGETHER = "attn::named_sync(4, 256);"  # the warps that prepare; 1 to 3 are those of the consumers
_ROWS = CHUNK // WARPS


class Preparer:
    """Prints the preparing warps."""

    def __init__(self, core: Core, scan: ChannelScan, layout: ChannelLayout) -> None:
        self._core, self._scan, self._layout = core, scan, layout
        self._pack, self._unpack = f"attn::{PACKS[scan.element]}", f"attn::un{PACKS[scan.element]}"
        self._one = f"threadIdx.x == {layout.consumers}"
        named = {scan.leaving: "q", scan.entering: "k"}
        self._roles = {role: named[role] if named[role] in scan.operands else None for role in ("late", "early")}

    def print(self) -> None:
        """All chunks."""
        core, writer, layout = self._core, self._core.writer, self._layout
        b_float, atoms, rows = str(self._scan.element == "bf16").lower(), layout.atoms, self._scan.store is not None
        writer.line(f"const int lane = threadIdx.x % 32, warp = attn::warp_index() - {4 * layout.warpgroups};")
        if rows:
            self._clear_pairs()
        self._declare_load()
        with core.scope(f"if ({self._one})"):
            for n in range(STAGES):
                writer.line(f"if (chunks > {n // atoms}) load({n // atoms}, {n % atoms}, {n});")
        writer.line("#pragma unroll 1")
        with core.scope("for (int number = 0; number < chunks; ++number)"):
            bind_position(core, self._scan, "number")
            writer.line(f"const int stage = number % {STAGES};", layout.address())
            writer.line("const uint32_t ready = shared + kReady + 8 * stage;")
            if rows:
                writer.line(f"attn::ChannelPairs<{b_float}, {str(self._scan.reverse).lower()}> pairs;")
            writer.line("#pragma unroll 1")
            with core.scope(f"for (int atom = 0; atom < {atoms}; ++atom)"):
                self._atom(b_float)
            if rows:
                writer.line(f"pairs.store<{atoms}>(at + {layout.tiles['pairs']}, shared + kOwn, warp, lane);")
            # The warpgroups that multiply read these tiles by wgmma once every warp has arrived.
            writer.line("attn::fence_proxy_async();", "attn::warp_sync();", "attn::warp_arrive(ready, lane == 0);")

    def _clear_pairs(self) -> None:
        """What no pair belongs to is 0."""
        writer, layout = self._core.writer, self._layout
        with writer.block(f"for (int n = threadIdx.x - {layout.consumers}; n < {STAGES * ATOM_BYTES // 16}; n += {32 * WARPS})"):
            place = f"n / {ATOM_BYTES // 16} * {layout.stage_bytes} + {layout.tiles['pairs']} + n % {ATOM_BYTES // 16} * 16"
            writer.line(f"attn::store_shared_int4(shared + kStages + {place}, 0, 0, 0, 0);")

    def _declare_load(self) -> None:
        """A function that starts to load a swizzle atom."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        with core.scope("const auto load = [&](int number, int atom, int slot)"):
            bind_position(core, scan, "number")
            writer.line(f"const uint32_t to = shared + kLoaded + slot * {layout.loaded_bytes}, full = shared + kFull + 8 * slot;")
            loaded = layout.loaded_bytes if scan.decays is not None else len(scan.operands) * ATOM_BYTES
            writer.line(f"attn::barrier_arrive_expect(full, {loaded});")  # bytes first: a copy may land before the next line
            if scan.decays is not None:
                width = ATOM // 2 if layout.decay == "f32" else ATOM
                map_ = core.arguments.descriptor(view_of(scan.decays.operands[0]).argument, width, CHUNK)
                for n in range(ATOM // width):
                    first = f"{ATOM} * atom{f' + {n * width}' if n else ''}"
                    writer.line(f"attn::tma_load(to + {n * ATOM_BYTES}, {map_}, full, {first}, {place_of(core, scan.decays)});")
            for name, each in scan.operands.items():
                load = each.load
                map_ = core.arguments.descriptor(view_of(load.operands[0]).argument, ATOM, CHUNK)
                writer.line(f"attn::tma_load(to + {layout.loaded[name]}, {map_}, full, {ATOM} * atom, {place_of(core, load)});")
        writer.lines[-1] += ";"

    def _atom(self, b_float: str) -> None:
        """64 channels of a chunk."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        atoms = layout.atoms
        writer.line(f"const int iteration = number * {atoms} + atom, slot = iteration % {STAGES};")
        writer.line(f"const uint32_t in = shared + kLoaded + slot * {layout.loaded_bytes};")
        writer.line(f"attn::barrier_wait(shared + kFull + 8 * slot, iteration / {STAGES} & 1);")  # the swizzle atom has landed
        self._change_rows()
        writer.line(f"attn::ChannelAtom<{b_float}> channels;")
        self._steps()
        writer.line("channels.share_totals(in, warp, lane);", _TOGETHER)
        with core.scope("if (atom == 0)"):
            # The stage's tiles are read by wgmma until the consumers give it back; its first use waits for nobody.
            writer.line(f"if (number >= {STAGES}) attn::barrier_wait(shared + kFree + 8 * stage, (number / {STAGES} & 1) ^ 1);")
            with core.scope(f"if ({self._one})"):
                self._load_values()
        self._make_tiles()
        # wgmma reads the tiles that all warps of this one made; only then may the next load take their place.
        writer.line("attn::fence_proxy_async();", _TOGETHER)
        following = f"iteration + {STAGES}"
        writer.line(f"if ({self._one} && {following} < chunks * {atoms}) load(({following}) / {atoms}, ({following}) % {atoms}, slot);")
        if scan.store is not None:
            writer.line("pairs.add(shared + kLevels, warp, lane);")

    def _make_tiles(self) -> None:
        """What the swizzle atom gives to the operands of products."""
        writer, scan, layout = self._core.writer, self._scan, self._layout
        given, made, scales = [], [], []
        for role, name in self._roles.items():
            given.append("0" if name is None else f"in + {layout.loaded[name]}")
            made.append("0" if name is None else f"at + {layout.tiles[role]} + atom * {ATOM_BYTES}")
            scales.append("1.0f" if name is None else self._scale(scan.operands[name]))
        asked = ", ".join(str(name is not None).lower() for name in self._roles.values())
        chunk_decay = f"shared + kChunkDecay + stage * {layout.decay_bytes} + atom * {ATOM * 4}"
        levels, own = ("0", "0") if scan.store is None else ("shared + kLevels", f"shared + kOwn + atom * {CHUNK * 4}")
        writer.line(f"channels.make_tiles<{asked}>({', '.join(given)}, {levels}, {', '.join(made)}, in, {chunk_decay},")
        writer.line(f"                    {own}, warp, lane, {', '.join(scales)});")

    def _load_values(self) -> None:
        """Starts to load the columns of v."""
        core, writer, layout, view = self._core, self._core.writer, self._layout, self._scan.v.view
        map_ = core.arguments.descriptor(view.argument, ATOM, CHUNK)
        column = f"{core.value(view.column)} + " if view.column is not None else ""
        # `ready` counts the bytes of v with the warps that make tiles.
        writer.line(f"attn::barrier_arrive_expect(ready, {layout.warpgroups * ATOM_BYTES});")
        for n in range(layout.warpgroups):
            to = f"at + {layout.tiles['v'] + n * ATOM_BYTES}"
            writer.line(f"attn::tma_load({to}, {map_}, ready, {column}{n * ATOM}, {place_of(core, self._scan.v.load)});")

    def _steps(self) -> None:
        """The factors of this thread's steps."""
        core, scan, layout = self._core, self._scan, self._layout
        with core.unrolled("r", _ROWS):
            if scan.decays is not None:
                load_decays(core, layout.decay, f"in + warp * {_ROWS * 128} + r * 128", str(ATOM_BYTES), "(r << 4)")
            print_steps(core, scan.steps, "given", "channels.steps[r]", self._place())

    def _change_rows(self) -> None:
        """Mods that are no constant factors, in place; rows of the next sequence are 0."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        changed = {name: op for name, op in scan.mods.items() if not _is_scale(scan.operands[name])}
        names = tuple(scan.operands) if scan.packed else tuple(changed)
        if not names:
            return
        count = core.value(scan.count)
        with core.unrolled("r", _ROWS):
            for name in names:
                address, word, pair = (core.names.fresh(hint) for hint in ("address", "word", "pair"))
                writer.line(
                    f"const uint32_t {address} = in + {layout.loaded[name]} + warp * {_ROWS * 128} + r * 128 + ((lane * 4) ^ (r << 4));"
                )
                if name in changed:
                    made = []
                    writer.line(f"const float2 {pair} = {self._unpack}(attn::load_shared_int({address}));")
                    for e, part in enumerate("xy"):
                        made.append(core.names.fresh("made"))
                        writer.line(f"float {made[-1]};")
                        with core.scope(""):
                            row, first = self._place()
                            bind_place(core, changed[name], (row, f"({first} + {e})"), f"{pair}.{part}")
                            writer.line(f"{made[-1]} = {core.value(widened(yielded(body(changed[name]))[0]))};")
                    writer.line(f"const int {word} = {_ROWS} * warp + r < {count} ? (int){self._pack}({', '.join(made)}) : 0;")
                    writer.line(f"attn::store_shared_int({address}, {word});")
                else:
                    writer.line(f"if ({_ROWS} * warp + r >= {count}) attn::store_shared_int({address}, 0);")

    def _place(self) -> tuple[str, str]:
        """Row r of this warp, and the first channel of this lane."""
        return f"({_ROWS} * warp + r)", f"{ATOM} * atom + 2 * lane"

    def _scale(self, source: InputTile) -> str:
        """The constant factor of q or k."""
        texts = [self._core.value(value) for value in source.factors] if _is_scale(source) else []
        return " * ".join(texts) or "1.0f"


def _is_scale(source: InputTile) -> bool:
    """Whether a mod multiplies all elements by the same numbers, if there is one."""
    return source.mod is None and not any(varies(value) for value in source.factors)
