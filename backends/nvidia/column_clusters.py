"""Heads whose columns the thread blocks of a cluster share, on Hopper: how many of these there are, and what each has.

Thread block r of a cluster has the r-th part of the columns of q, k, v and o, for the same rows. It multiplies its part of q and k, adds to
these scores what the others have, through shared memory of each other, and sums its part of v. So scores are computed once, and a block of
keys is loaded once for 128 rows, as in heads of up to 256 columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.fields import Fields, tuned_name
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.passes.slice_values import all_leave, retype, wide_results, with_columns
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.backends.nvidia.tuning.choices import CLUSTER, EVERY
from attn_mlir.errors import AttnError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all, piece, pieces
from attn_mlir.registry import registry

AHEAD = "ahead"
MOST = 4
"""Thread blocks of a cluster, at most: of so many the exchange was tested."""
_ROWS = 128
_STEP, _ATOM = 16, 64
"""Columns of a step of a product; of a swizzle atom, which is stored as a whole."""
_ATOM_BYTES = 128
_HEAD = 320
"""Columns of q and k of a thread block, at most: sums have registers for 256 of v, but products of scores need none."""
_BARRIERS = 1024
"""Bytes of shared memory for what is no tile, at most."""
_MOST, _NARROW = 64, 192
"""Keys of a block for which a thread has registers; values of up to so many columns leave room for a step more."""
_OTHER = ("attn.query", "attn.key", "attn.value", "attn.product", "attn.term", "attn.pages", "attn.key_lists")
"""What reads columns of q, k or v by their number, further tensors with columns, or keys from elsewhere."""


@dataclass(frozen=True)
class ColumnCluster:
    """`parts` thread blocks, each with so many columns of q and k (`head`) and of v and o (`value`), and blocks of so many keys."""

    parts: int
    head: int
    value: int
    keys: int
    ahead: int
    """How scores are sent where nothing else is asked for (`hopper.plan`)."""


def asked(function: ir.Operation, tuned: Mapping[str, Fields], choice: str = CLUSTER) -> int | str | None:
    """What a function's choices ask for, or those that a module keeps for it: how many thread blocks; None where nothing is said."""
    known = {**tuned.get(EVERY, {}), **tuned.get(tuned_name(function), {}), **attributes.read(function, attributes.CHOICES)}
    return known.get(choice)


def cluster_of(function: ir.Operation, attention: ir.Operation) -> ColumnCluster | None:
    """How a cluster shares the columns of an attention; None where slices of v are seen one after another."""
    choices = attributes.read(function, attributes.CHOICES)
    if choices.get("arch", HOPPER.arch) != HOPPER.arch or choices.get("emitter", "hopper") != "hopper" or choices.get(CLUSTER) == 1:
        return None
    if CLUSTER not in choices and ("block_q" in choices or "block_kv" in choices):  # whoever chose blocks did so for slices
        return None
    if choices.get("block_q", _ROWS) != _ROWS:
        return None
    head, value = (ir.RankedTensorType(attention.operands[n].type).shape[-1] for n in (0, 2))
    if value <= MAX_COLUMNS or head % 8 or value % 8 or not _is_plain(attention):
        return None
    heavy = is_heavy(attention)
    if CLUSTER not in choices and not pays(head, value, heavy):
        return None
    parts = int(choices.get(CLUSTER) or max(-(-value // MAX_COLUMNS), -(-head // _HEAD)))
    of_q, of_v = (-(-each // parts // step) * step for each, step in ((head, _STEP), (value, _ATOM)))
    keys = int(choices.get("block_kv") or _keys(parts, of_q, of_v))
    ahead = 0 if heavy else thresholds.SCORES_AHEAD
    return ColumnCluster(parts, of_q, of_v, keys, ahead) if keys and of_v <= MAX_COLUMNS else None


def pays(head: int, value: int, heavy: bool = False) -> bool:
    """Whether a cluster is faster than slices, for so many columns of q and of v; `heavy`: see `is_heavy`."""
    return thresholds.SHARED_COLUMNS[heavy] <= value <= 2 * MAX_COLUMNS and head <= 2 * _HEAD


def is_heavy(attention: ir.Operation) -> bool:
    """Whether weights take more registers than there are beside scores of two blocks, so that they would go to memory and back.

    So they do where a score depends on its key (ALiBi, biases of keys, tables, dropout), where a mask reads what is captured of keys, and
    in rows without a maximum.
    """
    score, mask, row = (piece(attention, f"attn.{name}") for name in ("score", "mask", "row"))
    if score is not None and any(True for _ in _key_of(score).uses):
        return True
    reads = [] if mask is None else find_all(mask, "tensor.extract")
    if mask is not None and any(depends(index, _key_of(mask)) for op in reads for index in list(op.operands)[1:]):
        return True
    kinds = [] if row is None else [ir.StringAttr(op.attributes["kind"]).value for op in find_all(row, "attn.reduce")]
    return row is not None and "max" not in kinds


def _key_of(piece_: ir.Operation) -> ir.Value:
    """The number of the key, which a piece of an attention has last."""
    return piece_.regions[0].blocks[0].arguments[-1]


def _is_plain(attention: ir.Operation) -> bool:
    """Whether q, k and v are tensors of 16 bits from outside, as they are, and o leaves as it is."""
    values = set(attention.operands)
    used = [use.owner.operation for each in values for use in each.uses]
    outside = len(values) == 3 and all(isinstance(each.owner, ir.Block) for each in values)
    elements = {str(ir.RankedTensorType(each.type).element_type) for each in values}
    plain = elements in ({"f16"}, {"bf16"}) and not any(pieces(attention, name) for name in _OTHER)
    read = all(op == attention or op.name == "tensor.dim" for op in used)
    return outside and plain and read and all_leave(wide_results(attention))


def _keys(parts: int, head: int, value: int) -> int:
    """Keys of a block: as many as shared memory has room for, with one tile of q, two of keys and of values, and scores of the others."""
    atoms = [-(-columns // _ATOM) * _ATOM_BYTES for columns in (head, value)]
    room = HOPPER.shared_bytes - _ROWS * atoms[0] - _BARRIERS
    most = _MOST if value > _NARROW else _MOST + _STEP
    return min(most, room // (2 * sum(atoms) + (parts - 1) * _ROWS * 4) // _STEP * _STEP)


def narrow(function: ir.Operation, attention: ir.Operation, cluster: ColumnCluster, tuned: Mapping[str, Fields]) -> dict[ir.Value, ir.Type]:
    """Gives a function the types and choices of one thread block; returns the types that it had. `tuned`: choices of its module."""
    q, k, v = attention.operands
    columns = {q: cluster.head, k: cluster.head, v: cluster.value, **dict.fromkeys(wide_results(attention), cluster.value)}
    before = {value: value.type for value in columns}
    for value, count in columns.items():
        value.set_type(with_columns(value.type, count))
    retype(function)
    choices = {**attributes.read(function, attributes.CHOICES), "emitter": "hopper", CLUSTER: cluster.parts}
    if asked(function, tuned, AHEAD) is None:  # those of a function come before those of its module
        choices[AHEAD] = cluster.ahead
    with function.context:
        function.attributes[attributes.CHOICES] = attributes.write({**choices, "block_q": _ROWS, "block_kv": cluster.keys})
    return before


def is_made(module: ir.Operation, function: ir.Operation, rest: str) -> bool:
    """Whether a function with the types and choices of one thread block becomes a kernel: the rest of the pipeline runs on a copy of it."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    copied = ir.Module.parse(module.get_asm(print_generic_op_form=True, enable_debug_info=True), module.context)
    for other in [op for op in find_all(copied.operation, "func.func") if ir.StringAttr(op.attributes["sym_name"]).value != name]:
        other.erase()
    handler = module.context.attach_diagnostic_handler(lambda _: True)
    try:
        Pipeline.parse(rest, registry()).run(copied)
    except AttnError:
        return False
    finally:
        handler.detach()
    return True
