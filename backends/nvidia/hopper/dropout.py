"""Bits of dropout for tiles in registers: each lane makes some of its warp's, and they are handed around; see `backends.gpu.dropout`."""

from collections.abc import Callable, Mapping
from itertools import permutations

from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import constant, maker, widened
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir
from attn_mlir.philox import GROUP

_ROW = "row - lane / 4"
"""The first row of the warp's 16."""


def kept_in(block: ir.Block) -> ir.Operation | None:
    """The first `attn.kept` of a map; further ones are computed for each pair."""
    return next((view.operation for view in block.operations if view.operation.name == "attn.kept"), None)


def only_for_dropout(value: ir.Value) -> bool:
    """Whether nothing else needs it."""
    users = [use.owner.operation for use in value.uses]
    return bool(users) and all(user.name == "attn.kept" for user in users)


def keys_along_columns(op: ir.Operation) -> bool:
    """Whether an `attn.kept` is that of a tile whose columns are keys."""
    depends = dependence(op.block)
    of = [depends.get(value, frozenset()) for value in op.operands]
    uniform = all(not each for each in of[:5]) and all(1 not in each for each in of[:7])
    return uniform and of[7] == frozenset({1}) and (keys_follow(op) or _keys_follow_in_groups(op))


def keys_follow(op: ir.Operation) -> bool:
    """Whether the key of a column is that of column 0, and the column."""
    return _moves(op.operands[7], op.block.arguments[1])


def _keys_follow_in_groups(op: ir.Operation) -> bool:
    """The same within blocks of a multiple of 16 keys, as those of lists are: what is added to a column is looked up by its block."""
    sum_, column = maker(op.operands[7], "arith.addi"), op.block.arguments[1]
    if sum_ is None:
        return False
    depends = dependence(op.block)
    return any(_moves(a, column) and _by_blocks(b, column, depends) for a, b in permutations(sum_.operands))


def _by_blocks(value: ir.Value, column: ir.Value, depends: Mapping[ir.Value, frozenset[int]]) -> bool:
    """Whether a value depends on the column only through which block of a multiple of 16 it is in."""
    if not depends.get(value):
        return True
    made = maker(value)
    if made is None:
        return False
    if made.name in ("arith.divsi", "arith.divui", "arith.floordivsi") and _moves(made.operands[0], column):
        size = constant(made.operands[1])
        return isinstance(size, int) and size > 0 and size % GROUP == 0
    return all(_by_blocks(operand, column, depends) for operand in made.operands)


def keys_along_rows(op: ir.Operation) -> bool:
    """Whether an `attn.kept` is that of a tile whose rows are keys; those past the last key stand for it, but nobody asks for them."""
    depends = dependence(op.block)
    of = [depends.get(value, frozenset()) for value in op.operands]
    return not any(of[:6]) and of[6] == frozenset({1}) and first_key(op) is not None


def first_key(op: ir.Operation) -> ir.Value | None:
    """The key of row 0, where row i is key + i, or key + min(i, ...)."""
    depends = dependence(op.block)
    sum_, row = maker(op.operands[7]), op.block.arguments[0]
    if sum_ is None or sum_.name != "arith.addi":
        return None
    for base, other in (list(sum_.operands), list(sum_.operands)[::-1]):
        least = maker(other)
        clamped = least is not None and least.name == "arith.minsi" and row in list(least.operands)
        if not depends.get(base) and depends.get(other) == frozenset({0}) and (other == row or clamped):
            return base
    return None


def _moves(value: ir.Value, index: ir.Value) -> bool:
    """Whether it is the index, and something that is the same for all."""
    op = maker(value)
    return value == index or (op is not None and op.name == "arith.addi" and index in list(op.operands))


def print_rows(core: Core, op: ir.Operation, columns: int) -> str:
    """Before the loops over a tile whose columns are keys: the name of what each lane makes, for `print_row_bits`.

    Word m of a lane has the bits of row `lane` % 16 of the warp, for the keys [32 n, 32 n + 32) where n = 2 m + `lane` / 16.
    """
    words = -(-columns // 64)
    name, query, row, key = (core.names.fresh(hint) for hint in ("kept_bits", "of_lane", "head_of_lane", "first_key"))
    *_, heads, b, h, q_idx, kv_idx = op.operands
    core.writer.line(f"unsigned {name}[{words}];")
    if not keys_follow(op):
        _print_groups(core, op, name, words, (query, row, key))
        return name
    with core.scope(""):
        core.scalars.bind(op.block.arguments[0], f"({_ROW} + lane % 16)")
        core.scalars.bind(op.block.arguments[1], "0")
        core.writer.line(f"const unsigned {query} = {core.scalars.emit(q_idx)}, {key} = {core.scalars.emit(kv_idx)} + lane / 16 * 32;")
        core.writer.line(f"const unsigned {row} = {head_row(core, b, heads, h)};")
        places = f"{row}, {query}, {query}, {key} + 64 * c, {key} + 64 * c + 16"
        _print_words(core, op, name, words, key, lambda: places)
    return name


def _print_groups(core: Core, op: ir.Operation, name: str, words: int, names: tuple[str, str, str]) -> None:
    """The same where the key of each 16 columns is looked up. A tile begins at a multiple of 16 columns."""
    query, row, key = names
    *_, heads, b, h, q_idx, kv_idx = op.operands
    seed, offset, drop = list(op.operands)[:3]
    values = ", ".join((*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})"))
    with core.scope(""):
        core.scalars.bind(op.block.arguments[0], f"({_ROW} + lane % 16)")
        core.writer.line(f"const unsigned {query} = {core.scalars.emit(q_idx)}, {row} = {head_row(core, b, heads, h)};")
        with core.unrolled("c", words):
            core.writer.line(f"unsigned {key}[2];")
            with core.unrolled("half", 2):
                core.scalars.bind(op.block.arguments[1], "(lane / 16 * 32 + 64 * c + 16 * half)")
                core.writer.line(f"{key}[half] = {core.scalars.emit(kv_idx)};")
            places = f"{row}, {query}, {query}, {key}[0], {key}[1]"
            core.writer.line(f"{name}[c] = {core.scalars.helper('philox_two')}({values}, {places});")


def _print_words(core: Core, op: ir.Operation, name: str, words: int, key: str, places: Callable[[], str]) -> None:
    """The words of a lane, by one test of where keys begin: calls in one block run beside each other."""
    seed, offset, drop = list(op.operands)[:3]
    values = ", ".join((*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})"))
    for head, helper in ((f"if ({key} % 16 == 0)", "philox_two"), ("else", "philox_within")):
        with core.scope(head), core.unrolled("c", words):
            core.writer.line(f"{name}[c] = {core.scalars.helper(helper)}({values}, {places()});")


def print_seeds(core: Core, ops: list[ir.Operation]) -> None:
    """Before loops: reads the seeds, which are the same for all lanes; `core.seeds` is cleared behind the loops."""
    new = core.seeds = {}
    for op in ops:
        for value in list(op.operands)[:2]:
            text = _read(core, value)
            if text and text not in new:
                new[text] = name = core.names.fresh("seed")
                whole = f"{name}_64"
                core.writer.line(f"const long long {whole} = {text};")
                low, high = (f"(unsigned)attn::uniform({half})" for half in (f"(int){whole}", f"(int)({whole} >> 32)"))
                core.writer.line(f"const unsigned {name}[2] = {{{low}, {high}}};")


def _read(core: Core, value: ir.Value) -> str:
    """How a seed is read from memory; "" for one that is not."""
    op = maker(value)
    while op is not None and op.name in ("arith.index_cast", "arith.extsi", "arith.extui"):
        op = maker(op.operands[0])
    if op is None or op.name != "memref.load" or any(constant(index) is None for index in list(op.operands)[1:]):
        return ""
    return core.load(op, [str(constant(index)) for index in list(op.operands)[1:]])


def seed_words(core: Core, value: ir.Value) -> tuple[str, str]:
    """The two halves of a seed."""
    name = core.seeds.get(_read(core, value))
    if name is not None:
        return f"{name}[0]", f"{name}[1]"
    text = core.scalars.emit(value)
    return f"(unsigned)({text})", f"(unsigned)((unsigned long long)({text}) >> 32)"


def packed_alone(op: ir.Operation, value: ir.Value, result: ir.Value) -> ir.Value | None:
    """What an element is but for dropout, where nothing but operands of products, rounded to 16 bits, is dropped; else None."""
    choice = maker(widened(value))
    if choice is None or choice.name != "arith.select" or choice.operands[0] != op.results[0] or constant(choice.operands[2]) != 0.0:
        return None
    once = len(list(choice.results[0].uses)) == 1 and widened(value) != value
    products = all(use.owner.operation.name in DOTS for use in result.uses)
    return choice.operands[1] if once and products else None


def print_row_bits(core: Core, op: ir.Operation, name: str, bits: str) -> None:
    """In the unrolled loop over `c`: puts the bits of the thread's two rows into the array `bits`, where those of 32 keys begin."""
    print_row_words(core, name, bits, "c")
    core.scalars.bind(op.results[0], f"(({bits}[h] >> (c % 2 * 16 + 7 - c % 4 / 2 * 4 + 8 * e) & 1u) != 0)")


def print_row_words(core: Core, name: str, bits: str, c: str) -> None:
    """The words of the thread's two rows: the highest bits of bytes are those of 16 keys, four bits below those of the next ones."""
    with core.scope(f"if ({c} % 4 == 0)"), core.unrolled("h", 2):
        core.writer.line(f"{bits}[h] = __shfl_sync(0xffffffffu, {name}[{c} / 8], lane / 4 + 8 * h + {c} / 4 % 2 * 16) << lane % 4;")


def print_all_row_bits(core: Core, op: ir.Operation, name: str, columns: int) -> None:
    """The same for all columns at once, where a loop goes through them in another order."""
    bits = core.names.fresh("kept_of_row")
    core.writer.line(f"unsigned {bits}[{2 * -(-columns // 32)}];")
    with core.unrolled("c", 2 * -(-columns // 32)):
        source = "lane / 4 + c % 2 * 8 + c / 2 % 2 * 16"
        core.writer.line(f"{bits}[c] = __shfl_sync(0xffffffffu, {name}[c / 4], {source}) << lane % 4;")
    core.scalars.bind(op.results[0], f"(({bits}[c / 4 * 2 + h] >> (c % 2 * 16 + 7 - c % 4 / 2 * 4 + 8 * e) & 1u) != 0)")


def print_columns(core: Core, op: ir.Operation, queries: int) -> str:
    """Before the loop over a tile whose columns are queries: the name of what each lane makes, for `print_column_bits`.

    Word m of a lane has the bits of the warp's 16 keys, for the queries n and n + 1 where n = 64 m + 2 `lane`.
    """
    words = -(-queries // 64)
    name, row, key = (core.names.fresh(hint) for hint in ("kept_bits", "of_head", "first_key"))
    *_, heads, b, h, q_idx, _ = op.operands
    base = first_key(op)
    assert base is not None
    core.writer.line(f"unsigned {name}[{words}];")
    with core.scope(""):
        core.writer.line(f"const unsigned {row} = {head_row(core, b, heads, h)}, {key} = {core.scalars.emit(base)} + {_ROW};")

        def places() -> str:
            pair = []
            for number in (0, 1):
                with core.scope(None):
                    core.scalars.bind(op.block.arguments[1], f"(64 * c + 2 * lane + {number})")
                    pair.append(f"(unsigned)({core.scalars.emit(q_idx)})")
            return f"{row}, {', '.join(pair)}, {key}, {key}"

        _print_words(core, op, name, words, key, places)
    return name


def print_column_bits(core: Core, op: ir.Operation, name: str) -> None:
    """In the loop over `c`: the bits of two queries, of which an element takes one by `h` and `e`."""
    bits = core.names.fresh("kept_here")
    shift = "(lane / 4 % 2 * 8 + 3 - lane / 8)"
    core.writer.line(f"const unsigned {bits} = __shfl_sync(0xffffffffu, {name}[c / 8], c % 8 * 4 + lane % 4) >> {shift};")
    core.scalars.bind(op.results[0], f"(({bits} >> (16 * h + 4 - 4 * e) & 1u) != 0)")


def head_row(core: Core, b: ir.Value, heads: ir.Value, h: ir.Value) -> str:
    """The number of a head among those of all batch entries."""
    return f"(long long){core.scalars.emit(b)} * {core.scalars.emit(heads)} + {core.scalars.emit(h)}"
