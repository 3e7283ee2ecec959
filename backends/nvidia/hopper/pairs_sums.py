"""Sums over keys, which all warpgroups make together and add to global memory, and scatters."""

from attn_mlir.backends.nvidia.hopper import pairs_late as late
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_bands import BandSums
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, key_count
from attn_mlir.backends.nvidia.hopper.pairs_key_sums import FULL_WEIGHTS, exchanged, free_weights
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer, WarpgroupSplit, head_columns
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP
from attn_mlir.backends.nvidia.hopper.pairs_map import WeightRegisters, body_of
from attn_mlir.backends.nvidia.hopper.pairs_reduction import ADDED, add_staged, added_barrier, part_block, stage_rows
from attn_mlir.backends.nvidia.hopper.pairs_uses import QuerySumsOfWarp, add_element, is_of_queries
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class QuerySums:
    """Prints `tile.accumulate` and `tile.scatter_add`."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, element: str) -> None:
        self.core, self.kernel, self.layout, self.element = core, kernel, layout, element
        self.bands = BandSums(core, kernel, layout, element)
        self._exchanged: dict[ir.Value, str] = {}
        self._parts: dict[ir.Value, list[RegTile]] = {}

    def clear_missing_keys(self, tiles: list[WeightRegisters]) -> None:
        """Rows behind the last key do not count in sums over keys."""
        if not tiles:
            return
        core = self.core
        count = key_count(self.core, self.kernel)
        with core.scope(f"if ({count} < {self.kernel.keys})"):
            if self.layout.is_full:  # there is no register for it in every step
                core.writer.line("const unsigned own_thread = attn::opaque(threadIdx.x);")
                core.writer.line("const int row = own_thread / 32 * 16 + own_thread % 32 / 4;")
            with core.unrolled("c", self.kernel.queries // 8), core.unrolled("h", 2):
                core.writer.all(f"if (row + 8 * h >= {count}) {tile.name}[2 * c + h] = 0;" for tile in tiles)

    def exchange(self, adds: list[ir.Operation], packed: dict[ir.Value, WeightRegisters]) -> None:
        """Writes weights to shared memory, and waits for all warpgroups, or tells the one that makes sums over keys."""
        core, layout = self.core, self.layout
        writer, keys = core.writer, self.kernel.keys
        copies = layout.exchange[0].copies
        consumers = 128 * layout.warpgroups
        if copies == 1:
            writer.line(f"attn::named_sync(2, {consumers});")
        own, store_row = core.names.fresh("own"), core.names.fresh("store_row")
        row = f"{own} / 32 * 16 + {own} / 8 % 2 * 8 + {own} % 8"
        if layout.turned:
            row = f"{own} / 16 % 2 * 8 + " + (f"{own} % 8 / 2 + {own} % 2 * 4" if layout.spread else f"{own} % 8")
        writer.line(f"const unsigned {own} = attn::opaque(threadIdx.x);", f"const unsigned {store_row} = {row};")
        for number, value in enumerate(dict.fromkeys(op.operands[0] for op in adds)):
            buffer, tile = layout.exchange[number], packed[value]
            address = f"shared + {buffer.offset}" + (f" + {buffer.bytes} * ({STEP} % {copies})" if copies > 1 else "")
            name = core.names.fresh("exchange")
            writer.line(f"const uint32_t {name} = {address};")
            self._exchanged[value] = name
            if layout.key_sums:
                writer.line(f"attn::named_sync({free_weights('warpgroup')}, 256);")  # dQ's warpgroup has multiplied what is there
            elif layout.late:
                writer.line(f"attn::named_sync({late.free_weights(late.OWN)}, 256);")  # the other consumer has multiplied what is there
            with core.unrolled("k", self.kernel.queries // 16):
                registers = ", ".join(f"{tile.name}[4 * k + {i}]" for i in range(4))
                if layout.turned:  # rows of queries, each warpgroup its keys
                    place = f"{own} / 128 * {self.kernel.queries * 128} + {store_row} * 128 + 2048 * k"
                    chunk = f"(({own} / 32 % 4 * 2 | {own} / 8 % 2) ^ {store_row} % 8) * 16"
                    writer.line(f"attn::store_matrices_transposed({name} + {place} + {chunk}, {registers});")
                else:
                    place = f"k / 4 * {keys * 128} + {store_row} * 128 + ((2 * k % 8 | {own} / 16 % 2) ^ {store_row} % 8) * 16"
                    writer.line(f"attn::store_matrices({name} + {place}, {registers});")
        # wgmma reads dS^T and P^T of all warpgroups from here.
        writer.line("attn::fence_proxy_async();")
        if layout.key_sums:
            writer.line(f"attn::named_arrive({FULL_WEIGHTS}, {consumers + 128});")  # and goes on: dQ's warpgroup waits for all
        elif layout.late:
            writer.line(
                # The other consumer waits for this a step later.
                f"attn::named_arrive({late.full_weights(late.OWN, '1 - warpgroup')}, {consumers});"
            )
        else:
            self.free_staging()
            writer.line(f"attn::named_sync(1, {consumers});")  # each multiplies the weights of all

    def multiply(self, adds: list[ir.Operation], memory: dict[ir.Value, ir.Value], free: RegTile | None) -> None:
        """Starts the products of all weights with their keys. `free`: a tile [64, queries] that nobody reads any more."""
        core, keys = self.core, self.kernel.keys
        self._parts = {}
        for op in adds:
            weights, tile, target = list(op.operands)[:3]
            split = self.layout.split(target)
            first = target not in self._parts
            if first:
                width = self.kernel.queries if split.transposed else split.columns
                given = [free] if split.transposed and free is not None else []
                self._parts[target] = [*given, *(core.fragment("query_sum", width) for _ in range(split.blocks - len(given)))]
            buffer = self.layout.keys[memory[tile]]
            if split.transposed:
                # (dS K)^T = K^T dS^T: any multiple of 8 queries is the width of an instruction.
                core.uses("", self.kernel.queries, "shared", self.element, False, True)
                b = SharedOperand(self._multiplied(weights), self.kernel.queries * 128)
                for number, tile in enumerate(self._parts[target]):
                    offset = buffer.offset + buffer.rows * 128 * self.layout.warpgroups * number
                    a = SharedOperand(f"shared + {offset} + {buffer.rows * 128} * warpgroup", buffer.rows * 128, True)
                    # What the compiler does not know to be overwritten keeps these registers: it would put weights there that
                    # are still read.
                    clear = "attn::opaque(1)" if first and tile is free else first
                    core.writer.all(product(tile.name, self.kernel.queries, keys, a, b, self.element, clear=clear))
                free = None
                continue
            core.uses("", split.columns, "shared", self.element, True, not self.layout.turned)
            for number, fragment in enumerate(self._parts[target]):
                block = part_block(self.layout, split, number)
                a = exchanged(self.layout, self._multiplied(weights), block)
                offset = "" if split.by_rows else f" + {self._column_bytes(split)} * warpgroup"
                b = SharedOperand(f"shared + {buffer.offset}{offset}", buffer.rows * 128, True)
                core.writer.all(product(fragment.name, split.columns, keys, a, b, self.element, clear=first))

    def _multiplied(self, weights: ir.Value) -> str:
        """Where the weights of this step are, or those of the step before."""
        if not self.layout.late:
            return self._exchanged[weights]
        buffer = self.layout.exchange[0]
        return f"shared + {buffer.offset} + {buffer.bytes} * ({late.BEFORE})"

    def _column_bytes(self, split: WarpgroupSplit) -> int:
        """From the first column of a warpgroup to that of the next one."""
        return split.columns * 2 if split.columns < 64 else split.columns // 64 * self.kernel.keys * 128

    def free_staging(self) -> None:
        """Waits until what was where sums go has been read, in the thread that had it copied: sums of the step before, or results."""
        if self.layout.adds and (not self.layout.reduction_warps or (self.layout.late and self.layout.among_adds)):
            self.core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();")

    def add(self, adds: list[ir.Operation], limit: str | None) -> None:
        """Adds the sums to global memory, without those of queries from `limit` on."""
        staged = [op for op in {op.operands[2]: op for op in adds}.values() if op.operands[2] in self.layout.adds]
        for op in {op.operands[2]: op for op in adds}.values():
            for fragment in self._parts[op.operands[2]]:
                self.core.writer.line(f"attn::hold({fragment.name});")
        reduction_warps = self.layout.reduction_warps
        if staged and reduction_warps:
            parity = f"{STEP} & 1" if self.layout.late else f"{STEP} & 1 ^ 1"
            # TMA has read the sums before from where these go. Late sums are those of the step before, and so is their phase.
            self.core.writer.line(f"attn::barrier_wait({added_barrier(self.layout)} + 8 * warpgroup, {parity});")
        for op in {op.operands[2]: op for op in adds}.values():
            if op in staged:
                self._stage(op)
            else:
                self._add_directly(op, limit)
        if staged and reduction_warps:
            # The reduction warp adds the staged dQ to memory by TMA: 128 threads and its own 32 meet.
            self.core.writer.line("attn::fence_proxy_async();", f"attn::named_arrive({ADDED} + warpgroup, 160);")
        elif staged:
            # Only the warp that starts the additions waits for the others.
            barrier = f"({ADDED} + warpgroup, 128);"
            self.core.writer.line(
                "attn::fence_proxy_async();", f"if (warp == 0) attn::named_sync{barrier}", f"else attn::named_arrive{barrier}"
            )
            with self.core.scope("if (threadIdx.x % 128 == 0)"):
                for op in staged:
                    add_staged(self.core, self.layout, op, "warpgroup", (late.ROW, late.HEAD) if self.layout.late else None)
                self.core.writer.line("attn::bulk_commit();")

    def await_late(self) -> None:
        """Waits for the weights of the step before, where there is one; else what they are multiplied to is not read."""
        self.free_staging()
        self.core.writer.line(f"if ({late.ROW} >= 0) attn::named_sync({late.full_weights(late.BEFORE)}, {128 * self.layout.warpgroups});")

    def add_late(self, adds: list[ir.Operation]) -> None:
        """Adds the sums of the step before, where there is one."""
        with self.core.scope(f"if ({late.ROW} >= 0)"):
            self._give_back_and_add(adds)

    def _give_back_and_add(self, adds: list[ir.Operation]) -> None:
        other = late.free_weights(late.BEFORE, "1 - warpgroup")
        # The products with the other consumer's weights are done (callers wait for them): it may write them again.
        self.core.writer.line(f"attn::named_arrive({other}, {128 * self.layout.warpgroups});")
        self.add(adds, None)

    def follow(self, adds: list[ir.Operation]) -> None:
        """Keeps where this step's sums will be added."""
        row, head = ("0", "0") if self.layout.reduction_warps else (self.core.value(list(adds[0].operands)[n]) for n in (6, 5))
        self.core.writer.line(f"{late.ROW} = {row};", *([] if self.layout.reduction_warps else [f"{late.HEAD} = {head};"]))

    def last(self, memory: dict[ir.Value, ir.Value]) -> None:
        """Makes and adds the sums of a program's last step."""
        adds, writer = self.kernel.step_ops("tile.accumulate")[:1], self.core.writer
        with self.core.scope(f"if ({late.ROW} >= 0)"):
            self.free_staging()
            # The other consumer has written its part of the last step's weights.
            writer.line(f"attn::named_sync({late.full_weights(late.BEFORE)}, {128 * self.layout.warpgroups});", "attn::wgmma_begin();")
            self.multiply(adds, memory, None)
            writer.line("attn::wgmma_commit();", "attn::wgmma_wait<0>();")
            self._give_back_and_add(adds)

    def _stage(self, op: ir.Operation) -> None:
        """Writes sums to shared memory."""
        core, target = self.core, op.operands[2]
        buffer, split = self.layout.adds[target], self.layout.split(target)
        if split.transposed:
            for number, fragment in enumerate(self._parts[target]):
                self._stage_transposed(fragment, buffer, buffer.offset + number * split.columns * 4 * buffer.rows)
            return
        for number, fragment in enumerate(self._parts[target]):
            offset = buffer.offset + number * split.columns * 256
            stage_rows(core, fragment.name, split.columns, f"shared + {offset} + {buffer.bytes} * warpgroup", self.layout.spread)

    def _stage_transposed(self, fragment: RegTile, buffer: SharedBuffer, offset: int) -> None:
        """The same for [columns, queries]: a warp's 32 elements, 8 columns of 4 queries two rows apart, are in 32 banks."""
        core = self.core
        with core.scope(""):
            core.writer.line(
                "const unsigned own = attn::opaque(threadIdx.x) % 128; // keeps what follows out of registers until here",
                "const uint32_t add_chunk = ((own / 32 % 2 * 4 | own / 16 % 2) ^ own % 4 * 2) * 16;",
                f"const uint32_t to = shared + {offset} + {buffer.bytes} * warpgroup + own / 64 * {buffer.rows * 128} "
                "+ own % 4 * 256 + own / 4 % 4 * 4;",
            )
            with core.unrolled("c", self.kernel.queries // 8), core.unrolled("h", 2), core.unrolled("e", 2):
                at = "to + 1024 * c + 128 * e + (add_chunk ^ 32 * h ^ 16 * e)"
                core.writer.line(f"attn::store_shared({at}, {fragment.name}[4 * c + 2 * h + e]);")

    def _add_directly(self, op: ir.Operation, limit: str | None) -> None:
        core = self.core
        _, _, target, slot, batch, head, row, _ = list(op.operands)
        split, columns = self.layout.split(target), head_columns(target)
        if split.transposed:
            raise UnsupportedError(f"hopper: sums over keys of blocks of {self.kernel.queries} queries leave through TMA")
        place = [core.value(value) for value in (slot, batch, head)]
        first = core.value(row)
        for number, fragment in enumerate(self._parts[target]):
            with core.scope(""):
                start = "column" if split.by_rows else f"{split.columns} * warpgroup + column"
                core.writer.line(f"const int query = 64 * {part_block(self.layout, split, number)} + tile_row, first_column = {start};")
                to = core.arguments.element(target, [*place, f"({first} + query)", "first_column"])
                core.writer.line(f"float *to = &{to};")
                with core.unrolled("h", 2):
                    if limit is not None:
                        core.writer.line(f"if (query + 8 * h >= {limit}) continue;")
                    core.writer.line("#pragma unroll")
                    with core.writer.block(f"for (int c = 0; c < {split.columns // 8}; ++c)"):
                        pair = f"{fragment.name}[4 * c + 2 * h], {fragment.name}[4 * c + 2 * h + 1]"
                        covered = split.columns * (1 if split.by_rows else self.layout.warpgroups) == columns
                        inside = "" if covered else f"if (first_column + 8 * c < {columns}) "
                        step = core.arguments.stride(target, 3)
                        core.writer.line(f"{inside}attn::add_global(to + 8 * h * {step} + 8 * c, {pair});")

    # ---- scatters

    def scatter_bands(
        self, banded: dict[ir.Value, list[tuple[ir.Operation, float]]], packed: dict[ir.Value, WeightRegisters], limit: str | None
    ) -> None:
        """Adds exchanged weights along their diagonals, while products of them are in flight."""
        for value, scatters in banded.items():
            for op, factor in scatters:
                with self.core.scope(""):
                    self.bands.print(op, packed[value], limit, factor)

    def scatter_pairs(self, op: ir.Operation, limit: str | None) -> None:
        """Adds an element of each pair at its place; where that depends on the query alone, the sum over the keys of a warp."""
        if is_of_queries(op):
            self._scatter_queries(op, limit)
            return
        core, block = self.core, body_of(op)
        count = key_count(self.core, self.kernel)
        with core.unrolled("c", self.kernel.queries // 8), core.unrolled("e", 2):
            core.writer.line("const int query = column + 8 * c + e;")
            with core.unrolled("h", 2), core.scope(f"if (row + 8 * h < {count}{'' if limit is None else f' && query < {limit}'})"):
                core.scalars.bind(block.arguments[0], "(row + 8 * h)")
                core.scalars.bind(block.arguments[1], "query")
                add_element(core, op)

    def _scatter_queries(self, op: ir.Operation, limit: str | None) -> None:
        """Sums over the keys that a warp has, and adds a number of each query."""
        core, block = self.core, body_of(op)
        count, sums = key_count(core, self.kernel), QuerySumsOfWarp(core, op, self.kernel.queries)
        with core.unrolled("c", self.kernel.queries // 8), core.unrolled("e", 2):
            core.writer.line("const int query = column + 8 * c + e;")
            with core.unrolled("h", 2), core.scope(f"if (row + 8 * h < {count}{'' if limit is None else f' && query < {limit}'})"):
                core.scalars.bind(block.arguments[0], "(row + 8 * h)")
                core.scalars.bind(block.arguments[1], "query")
                sums.element()
        sums.add(limit)

    def scatter_keys(self, op: ir.Operation) -> None:
        """Adds a value of each key at its place, in the order of the keys, by one thread."""
        core, block, layout = self.core, body_of(op), self.layout
        if len(list(block.arguments)) != 1:
            raise UnsupportedError("hopper: what is scattered behind the loop over queries has one value for each key")
        keys, consumers = self.kernel.keys, 128 * layout.warpgroups
        table = f"shared + {layout.scatter.offset}"
        count = key_count(self.core, self.kernel)
        writer = core.writer
        value, present, *indices = list(block.operations[-1].operation.operands)
        with core.unrolled("h", 2):
            core.scalars.bind(block.arguments[0], "(row + 8 * h)")
            writer.line("long long place = -1;")
            with core.scope(f"if (lane % 4 == 0 && row + 8 * h < {count})"):
                condition = core.scalars.emit(present)
                with core.scope(f"if ({condition})"):
                    texts = [core.value(index) for index in indices]
                    offsets = [f"{text} * {core.arguments.stride(op.operands[0], dim)}" for dim, text in enumerate(texts)]
                    writer.line(f"place = {' + '.join(offsets)};")
            text = core.scalars.emit(value)
            writer.line(
                f"if (lane % 4 == 0) *reinterpret_cast<long long *>(memory + {layout.scatter.offset} + 8 * (row + 8 * h)) = place;",
                f"if (lane % 4 == 0) attn::store_shared({table} + {8 * keys} + 4 * (row + 8 * h), {text});",
            )
        writer.line(f"attn::named_sync(2, {consumers});")
        with core.scope("if (threadIdx.x == 0)"), core.scope(f"for (int key = 0; key < {keys}; ++key)"):
            writer.line(f"const long long place = *reinterpret_cast<long long *>(memory + {layout.scatter.offset} + 8 * key);")
            added = f"attn::load_shared({table} + {8 * keys} + 4 * key)"
            writer.line(f"if (place >= 0) attn::add_global({core.arguments.pointer(op.operands[0])} + place, {added});")
        writer.line(f"attn::named_sync(2, {consumers});")
