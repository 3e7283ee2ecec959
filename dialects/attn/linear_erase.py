"""What the delta rule adds to a linear attention: what the state loses, a second writer, and the place where it is read."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import pieces_in, verify_owner, verify_signature
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

_LINEAR = ("attn.linear_attention", "attn.chunk")
OUTPUTS = ("after", "decayed", "written", "values")
"""What `output` may be: where q reads the state, or "values"."""
READS = ("decayed", "written")
"""Where `attn.erase` may read the state."""


@single_variadic
class EraseOp(Attn.Operation, name="erase"):
    """The delta rule: the state loses what it holds for an erase key e, before it takes up k_t v_t^T.

        S_t = exp(g_t) S_(t-1) + k_t v_t^T - r_t x_t^T,    x_t = e_t^T (state where it `reads`)

    The region makes e of `key`: (x, b, h, t, d) -> e, with h the head of o. r is `removed`, after `attn.remove`, or without it k after
    `attn.key`: then the state takes up k_t (v_t - x_t)^T. Both are [batch, head, position, K], their heads divide those of o.

    Fields:
        key: what e is made of
        removed: the key r that is removed, at most one
        reads: "decayed", exp(g_t) S_(t-1), or "written", exp(g_t) S_(t-1) + k_t v_t^T, which has a `removed` key
    """

    key: ext.Operand[Any]
    removed: Sequence[ext.Operand[Any]]
    reads: ir.StringAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not verify_owner(self, _LINEAR):
            return False
        if not check(self, len(self.removed) <= 1, f"removes at most one key, got {len(self.removed)}"):
            return False
        reads = self.reads.value
        if not check(self, reads in READS, f"takes `reads` as one of {', '.join(READS)}, got '{reads}'"):
            return False
        return check(
            self, reads != "written" or len(self.removed) == 1, "reads what is written where another key is removed, and only there"
        )

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "x, b, h, t, d", ["score"] + ["index"] * 4, ["score"])


class RemoveOp(Attn.Operation, name="remove"):
    """What an `attn.erase` removes, made of its `removed` key: (x, b, h, t, d) -> r, with h the head of o. Absent: the key as it comes.

    Nobody writes it: gradients of the delta rule do, where what is removed is a key times a number of each row.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _LINEAR)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "x, b, h, t, d", ["score"] + ["index"] * 4, ["score"])


class WriteOp(Attn.Operation, name="write"):
    """A second writer of the state, besides k_t v_t^T: S_t also takes up r_t z_t^T, for `key` r and `value` z.

    Nobody writes it: gradients of the delta rule do. `key` is [batch, head, position, K], `value` [batch, head, position, V].
    """

    key: ext.Operand[Any]
    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return verify_owner(self, _LINEAR)


def _found(op: ir.Operation, name: str) -> ir.Operation | None:
    return next((piece for piece in pieces_in(op) if piece.name == name), None)


def removes_another(op: ir.Operation) -> bool:
    """Whether another key is removed than the one that is written."""
    erase = eraser(op)
    return erase is not None and len(list(erase.operands)) == 2


def eraser(op: ir.Operation) -> ir.Operation | None:
    """The `attn.erase` of an `attn.linear_attention` or `attn.chunk`."""
    return _found(op, "attn.erase")


def writer(op: ir.Operation) -> ir.Operation | None:
    """The `attn.write` of an `attn.linear_attention` or `attn.chunk`."""
    return _found(op, "attn.write")


def remover(op: ir.Operation) -> ir.Operation | None:
    """The `attn.remove` of an `attn.linear_attention` or `attn.chunk`."""
    return _found(op, "attn.remove")


def output_of(op: ir.Operation) -> str:
    """Where q reads the state, or "values"."""
    return ir.StringAttr(op.attributes["output"]).value if "output" in op.attributes else "after"


def is_delta(op: ir.Operation) -> bool:
    """Whether an `attn.linear_attention` or `attn.chunk` is more than S_t = exp(g_t) S_(t-1) + k_t v_t^T, o_t = q_t S_t."""
    return eraser(op) is not None or writer(op) is not None or output_of(op) != "after"


def reads_strictly(op: ir.Operation, second: bool) -> bool:
    """Whether o_t leaves out what position t itself writes, by its first or `second` writer."""
    return {"after": False, "written": second}.get(output_of(op), True)


def verify_delta(op: Any) -> bool:
    """Checks `attn.erase`, `attn.write` and `output` of a linear attention."""
    erase, write = eraser(op.operation), writer(op.operation)
    output = op.operation.attributes["output"] if "output" in op.operation.attributes else None
    named = output is None or (isinstance(output, ir.StringAttr) and output.value in OUTPUTS)
    if not check(op, named, f"takes `output` as one of {', '.join(OUTPUTS)}, got {output}"):
        return False
    place = output_of(op.operation)
    if not check(op, place != "values" or erase is not None, "makes 'values' where it erases"):
        return False
    element = op.o.type.element_type
    fits = place != "values" or is_score_type(element) or element == op.v.type.element_type
    if not check(op, fits, f"makes 'values' of f32, f64 or v's type, got {op.o.type}"):
        return False
    removes = erase is not None and len(erase.opview.removed) == 1
    if not check(op, removes or remover(op.operation) is None, "has an 'attn.remove' where 'attn.erase' has a key to remove"):
        return False
    second = write is not None or removes
    if not check(op, place != "written" or second, "is read where it is 'written' by the first of two writers"):
        return False
    if erase is write is None and place == "after":
        return True
    crossing = op.factor is None or erase is write is None or "crossing" in op.operation.attributes
    if not check(op, crossing, "makes `crossing` products with 'attn.erase' and 'attn.write'"):
        return False
    names = {piece.name for piece in pieces_in(op.operation)}
    if not check(op, not names & {"attn.skip", "attn.result"}, "has no 'attn.skip' and no 'attn.result' beside 'attn.erase' and `output`"):
        return False
    return _verify_erase(op, erase, write)


def _verify_erase(op: Any, erase: ir.Operation | None, write: ir.Operation | None) -> bool:
    if not check(op, erase is None or write is None, "has an 'attn.erase' or an 'attn.write', not both"):
        return False
    if not check(op, erase is None or op.state.value == "kv", "erases where states are 'kv'"):
        return False
    if not check(op, erase is None or op.factor is None, "makes no products where it erases"):
        return False
    k, v = op.k.type.shape[3], op.v.type.shape[3]
    keys = [] if erase is None else list(erase.operands)
    if write is not None:
        keys.append(write.operands[0])
        type_ = write.operands[1].type
        if not check(op, is_tensor(type_, 4) and type_.shape[3] == v, f"writes values [batch, head, position, {v}], got {type_}"):
            return False
    fits = all(is_tensor(key.type, 4) and key.type.shape[3] == k for key in keys)
    return check(op, fits, f"erases and writes keys [batch, head, position, {k}], got {', '.join(str(key.type) for key in keys)}")
