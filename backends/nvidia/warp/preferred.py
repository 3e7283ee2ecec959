"""Which kernels come from the `warp` dialect where nobody asks for an emitter: those measured to be as fast as the Hopper emitter's."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, Fields
from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.gpu.scalar_bounds import reads_work
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.nvidia import narrow_windows, thresholds
from attn_mlir.backends.nvidia.forming.facts import FIELDS, OF_HOPPER
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.hopper.pairs_claims import FIELD as CLAIMS
from attn_mlir.backends.nvidia.hopper.plan_windows import GATHERS
from attn_mlir.backends.nvidia.target import OF_MACHINE
from attn_mlir.backends.nvidia.warp import families
from attn_mlir.backends.nvidia.warp.emitter import print_ahead
from attn_mlir.dialects.warp.kinds import padded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker, walk

_OPS = frozenset({
    "arith.constant", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.maximumf", "arith.minimumf", "arith.select",
    "arith.cmpf", "arith.cmpi", "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.minsi", "arith.maxsi", "arith.truncf",
    "math.exp2", "math.exp", "math.fma", "math.log", "math.log2", "tensor.extract", "memref.dim", "scf.for", "scf.yield", "func.return",
    "tile.program_id", "tile.load", "tile.store", "tile.fill", "tile.dot", "tile.dot_add", "tile.dot_rescale", "tile.map", "tile.yield",
})  # fmt: skip
"""Ops of such kernels."""
_ROWS = _OPS | {"memref.load", "arith.andi", "arith.ori", "arith.index_cast", "arith.sitofp", "math.absf", "math.sqrt"}
_WIDENED = frozenset({"arith.extf"})
"""And with biases of 16 bits."""
_FIRST, _SECOND, _PAIR = frozenset({0}), frozenset({1}), frozenset({0, 1})
"""What places depend on, by the arguments of maps over pairs: a query and a key, in a backward pass a key and a query."""
_PAIRS = _OPS | {"tile.accumulate", "memref.load", "arith.negf", "attn.range", "scf.if", "arith.andi", "arith.index_cast"}
"""The same of backward passes, which read numbers of queries, and documents."""
_DOCUMENTS = {"attn.range", "scf.if"}
"""What looks for the blocks of documents."""
_SUMS = ("arith.addi", "arith.subi", "arith.minsi", "arith.maxsi", "arith.index_cast")
"""What sums of positions are made of: a clamp has a bound that does not depend on them."""
_STEPS, _LOOPS = 2, 3
"""Blocks of keys, and loops over queries, of one pass that are not alike, at most: those that a mask cuts, whole ones, and the last one."""
_OF_POSITIONS = frozenset({"arith.sitofp"})
"""What terms of positions need in addition."""
_FACTS = frozenset({"block_q", "block_kv", "grid", "disjoint", "outputs", "over", "score"})
"""Facts of kernels over pairs."""
_PACKED = frozenset({"lengths", "begins", "ragged", "paged", "table"})
"""What those on packed sequences have besides."""
_EXPONENTIALS = ("math.exp", "math.exp2")
_LATE = "late"
"""Sums over keys of the Hopper emitter's schedules for 128 columns."""
_OF_CLAIMS = (CLAIMS, "semaphore_over", "semaphore_rows", "semaphore_parts")
"""Fields of sums that the first thread block stores, and of their counters."""
_SAME = 1
"""Predicates of `arith.cmpi` up to this one: equal, other."""
_WEIGHTS = {1: "softmax", 2: "capped"}
"""What weights are, by the exponentials of a pair, where they have a maximum or, in a backward pass, two numbers of each query."""
_PASSES = {0: "plain passes", 1: "passes"}
"""What those of several passes are, by the most exponentials of a pair in one of them."""
_READ = frozenset(
    {*FIELDS, *OF_MACHINE, "length", "longer", narrow_windows.NARROW, "block_q", "block_kv", "deterministic", GATHERS} - OF_HOPPER
)
"""Names of choices and of fields of a schedule that say something of such a kernel, or nothing of any kernel of rows and pairs."""


def preferred(kernel: ir.Operation, fields: Fields) -> Fields:
    """A schedule of the Hopper emitter, with "warp" as its emitter where passes form a kernel that was measured to be no slower.

    Where somebody chose something that passes do not read, or an emitter, it stays as it is. Raises UnsupportedError where lanes were asked
    to share bits of dropout, or blocks of rows to end with the rows, and no kernel does so.
    """
    choices, rows = attributes.read(kernel, CHOICES), attributes.grid_kind(kernel) == "rows"
    asked = {name: value for name, value in choices.items() if not name.startswith(attributes.LAUNCH)}
    dropout = str(choices.get("dropout", "")) if rows and drops(kernel) else ""
    made = fields
    if fields.get("emitter") == "hopper" and not asked.keys() - _READ and dropout != "own":
        made = _made(kernel, fields, asked)
    aligned = str(choices.get("align", "")) if rows and fields.get("emitter") == "hopper" else ""
    for name, value, values in (("dropout", dropout, ("own", "lanes")), ("align", aligned, ("start", "end"))):
        if value and (value not in values or (value == values[1] and made.get(name) != value)):
            possible = repr(values[0]) if value in values else " or ".join(map(repr, values))
            raise UnsupportedError(f"in a schedule of this program {name} can be {possible}, not {value!r}")
    return made


def _made(kernel: ir.Operation, fields: Fields, asked: Fields) -> Fields:
    """The schedule of the passes' kernel where that was measured and can be formed, else the one that there is."""
    key = _key(kernel)
    if not _is_measured(kernel, fields, key):
        return fields
    if fields.get(CLAIMS) and "longer" in fields:  # calls of few keys
        if key in families.HOPPER_FEW:
            return fields
        fields = {name: value for name, value in fields.items() if name != "longer"}
    made: Fields = {**_chosen(kernel, fields, asked, key), "emitter": "warp"}
    try:
        print_ahead(kernel, made)
    except (Refused, UnsupportedError):
        return fields
    return made


def _chosen(kernel: ir.Operation, fields: Fields, asked: Fields, key: tuple[str | int, ...]) -> Fields:
    """What the passes are told of a schedule, and what was measured to be best."""
    dense, dropped = not _is_packed(kernel), attributes.grid_kind(kernel) == "rows" and drops(kernel)
    read = _READ - {CLAIMS} - (frozenset() if dropped else {"dropout"})
    # The Hopper emitter's schedules have none of the fields that passes alone read.
    known = {**{name: value for name, value in asked.items() if name in FIELDS}, **fields}
    kept = {name: value for name, value in known.items() if name in read or name.startswith(attributes.LAUNCH)}
    if key in families.WARP_ADDED and dense:
        added: Fields = thresholds.ADDED_BACKWARD | ({"named": 1} if key in families.WARP_NAMED else {})
        added |= {"unsigned_lanes": 1} if key in families.WARP_LANES else {}
        kept |= {name: asked.get(name, value) for name, value in added.items()}
        kept |= {name: fields[name] for name in _OF_CLAIMS} if fields.get(CLAIMS) else {}
    elif kept.get("key_sums") == _LATE and "key_sums" not in asked:
        del kept["key_sums"]  # without warps that add, none was faster than the Hopper emitter's in all shapes
    if "longer" in kept and key in families.WARP_LONG:
        kept["longer"] = max(int(kept["longer"]), families.WARP_LONGER)
    told = key in families.WARP_TOLD | families.WARP_LATER | (families.WARP_DROPPED if dropped else frozenset())
    wanted = {
        "lazy_rescale": 1 if key in families.WARP_LAZY or dropped else None,
        "tell": 1 if (told if dense else attributes.grid_kind(kernel) == "rows") else None,
        "tile_stages": 2 if dense and key in families.WARP_LATER else None,
        "join": 0 if dense and (key not in families.WARP_DROPPED_JOINED if dropped else key in families.WARP_APART) else None,
        "align": "end" if dense and _ends_with_rows(kernel, key) else None,
        "dropout": "lanes" if dropped else None,
        "stages": families.PAGED_STAGES.get(int(key[1])) if _is_paged(kernel) else None,
    }
    return {**kept, **{name: value for name, value in wanted.items() if value is not None and name not in asked}}


def _is_measured(kernel: ir.Operation, fields: Fields, key: tuple[str | int, ...]) -> bool:
    """Whether such a kernel was measured, and was no slower."""
    rows, packed, windows = attributes.grid_kind(kernel) == "rows", _is_packed(kernel), "windows" in fields
    known = families.WARP_PACKED if packed else families.WARP_ROWS if rows else families.WARP_PAIRS
    known = families.WARP_PAGED if _is_paged(kernel) else known
    if rows and drops(kernel):
        known = known & families.WARP_DROPPED if packed else families.WARP_DROPPED
    apart = packed if windows else any("biases" in str(word) for word in key)
    return not fields.get("deterministic") and not apart and key in known


def _key(kernel: ir.Operation) -> tuple[str | int, ...]:
    """What a kernel's weights are, its columns of q and k and of v, and its blocks; nothing where no kernel of its kind was measured."""
    facts = {item.name: item.attr for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    maps = [map_ for map_ in find_all(kernel, "tile.map") if _is_of_pairs(map_)]
    shapes = [ir.MemRefType(op.operands[0].type) for op in find_all(kernel, "tile.load")]
    if not shapes or any(str(shape.element_type) not in ("f16", "bf16") for shape in shapes) or not {"block_q", "block_kv"} <= facts.keys():
        return ()
    grid = attributes.grid_kind(kernel)
    words = _words_of_rows(kernel, facts, maps) if grid == "rows" else _words_of_pairs(kernel, facts, maps) if grid == "pairs" else None
    sizes = (ir.IntegerAttr(facts[name]).value for name in ("block_q", "block_kv"))
    columns = (n if n in families.UNPADDED else padded(n) for n in (shapes[0].shape[-1], shapes[-1].shape[-1]))
    return () if words is None else (words, *columns, *sizes)


def _ends_with_rows(kernel: ir.Operation, key: tuple[str | int, ...]) -> bool:
    """Whether the block of rows that is short should be the first one: where the last key that a block sees depends on its rows."""
    loops = [loop for loop in find_all(kernel, "scf.for") if find_all(loop, "tile.dot")]
    return key in families.WARP_ALIGNED and bool(loops) and depends_on_block(loops[-1].operands[1])


def drops(kernel: ir.Operation) -> bool:
    """Whether it has dropout."""
    return bool(find_all(kernel, "attn.kept"))


def _words_of_rows(kernel: ir.Operation, facts: dict[str, ir.Attribute], maps: list[ir.Operation]) -> str | None:
    """What weights of a forward pass or a tangent are; None for kernels of a kind that none was measured of.

    "exact": no other number may stand for a row's maximum; "window": masks have two sides, each of which may have no limit; "offset": a
    mask has a captured number; "documents": blocks of keys are looked for; "tangent": there are two products of scores; "passes": there are
    several over the keys. What is read of captured tensors: `_captured`. Queries of packed sequences are rows of views.
    """
    steps = list(dict.fromkeys(op.block for op in find_all(kernel, "tile.dot")))
    numbers = sum(isinstance(a.type, ir.IndexType) and not _of_dropout(a) for a in kernel.regions[0].blocks[0].arguments)
    window, documents = numbers == 2 and any(find_all(map_, "arith.ori") for map_ in maps), bool(find_all(kernel, "attn.range"))
    captured, known = _captured(kernel, maps, documents), _ROWS | (_DOCUMENTS if documents else set())
    known |= _WIDENED if "biases16" in (captured or ()) else set()
    known |= {"attn.kept"} if drops(kernel) else set()
    divided = any(find_all(map_, "arith.floordivsi") for map_ in maps)
    known |= {"arith.floordivsi"} if divided else set()
    if (
        set(facts) - {"block_q", "block_kv", "grid"} - _PACKED
        or not _has_views(facts)
        or not all(op == kernel or op.name in known for op in walk(kernel))
        or not steps
        or (numbers > 1 and not window)
        or captured is None
    ):
        return None
    products = {sum(op.block == step for op in find_all(kernel, "tile.dot")) for step in steps}
    passes = len(steps) > _STEPS + (window or documents or divided)
    counts = {sum(op.name in _EXPONENTIALS for map_ in maps if map_.block == step for op in walk(map_)) for step in steps}
    kinds = [{kind for map_ in maps if map_.block == step for kind in map_.opview.kinds()} for step in steps]
    maxima = {"max" in each for each in kinds}
    if len(products) != 1 or max(products) > 2 or (not passes and (len(counts) != 1 or len(maxima) != 1)):
        return None
    count, has_maximum = max(counts), any(maxima)
    weight = _PASSES.get(count) if passes else _WEIGHTS.get(count) if has_maximum else _weight(kernel, maps, count)
    exact = has_maximum and not any(FREE in op.attributes for op in find_all(kernel, "arith.maximumf"))
    words = [
        weight,
        "exact" if exact else "",
        *captured,
        "offset" if numbers == 1 else "",
        "divided" if divided else "",
        "documents" if documents else "",
        "window" if window else "",
    ]
    words += ["tangent" if max(products) == 2 else "", "masked" if _is_masked(maps) else ""]
    return None if weight is None else " ".join(word for word in words if word)


def _weight(kernel: ir.Operation, maps: list[ir.Operation], exponentials: int) -> str | None:
    """What weights without a maximum are: "quotient" of one exponential, "rectified" scores, or divided by an "absolute" sum."""
    absolute, rectified = bool(find_all(kernel, "math.absf")), _is_rectified(maps)
    if exponentials:
        return "quotient" if exponentials == 1 and not rectified and not absolute else None
    return "absolute" if absolute else "rectified" if rectified else None


def _captured(kernel: ir.Operation, maps: list[ir.Operation], documents: bool) -> list[str] | None:
    """What is read of captured tensors: numbers of "keys"; "numbers" or, of integers, "lengths" of the head or batch entry; "sums": at the
    sum of both positions; "biases16" or "biases32", by their bits: of each query and key, in windows.

    "places": scores are made of positions. None for others. Of `documents`, masks may read integers of queries and keys.
    """
    reads = [read for read in find_all(kernel, "memref.load") if not reads_work(read) and not _of_dropout(read.results[0])]
    found = {_read_at(read) for read in reads if not documents or isinstance(read.results[0].type, ir.FloatType)}
    places = any(find_all(map_, "arith.sitofp") for map_ in maps)
    if "lengths" in found and any(find_all(map_, "arith.andi", "arith.ori") for map_ in maps):
        return None  # masks of two sides
    return None if "" in found else [*sorted(found), *(["places"] if places else [])]


def _read_at(read: ir.Operation) -> str:
    """What a captured number belongs to, by what its place depends on in the map that reads it; empty for others."""
    around = read.parent.operation if read.parent is not None else read
    same = "numbers" if isinstance(read.results[0].type, ir.FloatType) else "lengths"
    if around.name != "tile.map":
        return same if around.name == "func.func" else ""
    block, kinds, indices = around.regions[0].blocks[0], _places(read), list(read.operands)[1:]
    if kinds == {_PAIR} and len(indices) == 1:
        return "sums" if [_growth(indices[0], argument) for argument in block.arguments] == [1, 1] else ""
    if isinstance(read.results[0].type, ir.FloatType) and _is_window(indices, list(block.arguments)):
        return f"biases{read.results[0].type.width}"
    return {frozenset(): same, _SECOND: "keys"}.get(next(iter(kinds)), "") if len(kinds) == 1 else ""


def _is_window(indices: list[ir.Value], places: list[ir.Value]) -> bool:
    """Whether one index grows with the query, the last one with the key, and no other with either."""
    grown = [[_growth(index, place) for place in places] for index in indices]
    return grown[-1] == [0, 1] and sorted(grown[:-1], key=str) == [*[[0, 0]] * (len(indices) - 2), [1, 0]]


def _places(read: ir.Operation) -> set[frozenset[int]]:
    """What each index of a captured number depends on, of the arguments of the map that reads it; on both where not all pairs read it."""
    if read.parent is None or read.parent.operation.name != "tile.map":
        return {_PAIR}
    depends = dependence(read.block)
    return {depends.get(index, frozenset()) for index in list(read.operands)[1:]}


def _of_dropout(value: ir.Value) -> bool:
    """Whether nothing but dropout uses a number."""
    users = [use.owner.operation for use in value.uses]
    cast = all(op.name == "arith.index_cast" and _of_dropout(op.results[0]) for op in users)
    return bool(users) and (cast or all(op.name == "attn.kept" for op in users))


def _growth(value: ir.Value, argument: ir.Value) -> int | None:
    """By how much a sum of positions, or of the last ones that exist, grows with one of them; None for other numbers."""
    if value == argument:
        return 1
    op = maker(value)
    if op is None or op.block != argument.owner:
        return 0
    grown = [by for operand in op.operands if (by := _growth(operand, argument)) is not None]
    if len(grown) != len(op.operands) or op.name not in _SUMS:
        return None
    return grown[0] - grown[1] if op.name == "arith.subi" else sum(grown)


def _words_of_pairs(kernel: ir.Operation, facts: dict[str, ir.Attribute], maps: list[ir.Operation]) -> str | None:
    """What weights of a backward pass are: by exponentials, its mask, and whether it reads numbers of queries, as softmax does.

    Other ops of pairs spill. "documents": blocks of queries are looked for; "window": a mask has two sides; "positions": scores have terms
    of positions; "keys": captured numbers of keys are added; "lengths": a mask reads an integer of the head or batch entry.
    """
    arguments = list(kernel.regions[0].blocks[0].arguments)
    reads = [read for map_ in maps for read in find_all(map_, "memref.load")]
    numbers = {read.operands[0] for read in reads}
    floats = {value for value in numbers if isinstance(ir.MemRefType(value.type).element_type, ir.F32Type)}
    keys = {read.operands[0] for read in reads if _places(read) <= {_FIRST}} & floats
    of_rows = len(floats - keys - {read.operands[0] for read in reads if not any(_places(read))})
    lengths = {read.operands[0] for read in reads if not any(_places(read))} - floats
    sums = ir.ArrayAttr(facts["outputs"]) if "outputs" in facts else []
    counts = {sum(op.name in _EXPONENTIALS for op in walk(map_)) for map_ in maps}
    limits = sum(isinstance(argument.type, ir.IndexType) for argument in arguments[:-1])
    window = limits == 2 and any(find_all(map_, "arith.ori") for map_ in maps)
    placed = any(find_all(map_, *_OF_POSITIONS) for map_ in maps)
    allowed = _PAIRS | _OF_POSITIONS | ({"arith.ori"} if window else frozenset())
    if (
        set(facts) - _FACTS - _PACKED
        or not _has_views(facts)
        or sorted(ir.StringAttr(kind).value for kind in sums) != ["accumulate", "store", "store"]
        or not all(op == kernel or op.name in allowed for op in walk(kernel))
        or len({op.operands[0] for op in find_all(kernel, "tile.load")}) != 4
        or (limits and not window)
        or len(counts) != 1
        or len(maps) > _LOOPS
        or any({_FIRST, _SECOND} <= _places(read) for read in reads)
    ):
        return None
    (count,), documents, rectified = counts, bool(find_all(kernel, "attn.range")), _is_rectified(maps)
    if (count and rectified) or (not documents and not window and any(find_all(map_, "arith.andi") for map_ in maps)):
        return None  # softcap before a relu; other masks of two sides
    normalised = _WEIGHTS.get(count) if of_rows == (3 if keys else 2) else "linear" if not count and of_rows == 1 else None
    weight = "sigmoid" if count == 1 and not floats else "rectified" if rectified else normalised
    kinds = {"documents": documents, "window": window, "positions": placed, "keys": keys, "lengths": lengths and not documents}
    kinds["masked"] = _is_masked(maps)
    told = [weight, *(word for word, said in kinds.items() if said)]
    return None if weight is None or (numbers - floats - lengths and not documents) else " ".join(word for word in told if word)


def _is_packed(kernel: ir.Operation) -> bool:
    return "lengths" in ir.DictAttr(kernel.attributes["tile.kernel"])


def _is_paged(kernel: ir.Operation) -> bool:
    return "paged" in ir.DictAttr(kernel.attributes["tile.kernel"])


def _has_views(facts: dict[str, ir.Attribute]) -> bool:
    """Whether queries, where sequences are packed, are rows of a view, and no heads of single queries."""
    return "lengths" not in facts or ("ragged" in facts and 0 in list(ir.DenseI64ArrayAttr(facts["ragged"])))


def _is_masked(maps: list[ir.Operation]) -> bool:
    """Whether positions are compared, other than for being the same."""
    compares = [op for map_ in maps for op in find_all(map_, "arith.cmpi")]
    return any(ir.IntegerAttr(op.attributes["predicate"]).value > _SAME for op in compares)


def _is_rectified(maps: list[ir.Operation]) -> bool:
    """Whether scores are compared, or the larger one of two is taken, as in a relu."""
    return any(find_all(map_, "arith.cmpf", "arith.maximumf") for map_ in maps)


def _is_of_pairs(map_: ir.Operation) -> bool:
    return len(list(map_.operands)) == 2
