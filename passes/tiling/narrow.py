"""The types that products of an attention are computed in where q, k or v have 8-bit elements."""

from dataclasses import dataclass

from attn_mlir.dialects.elements import bits_of, element_of, is_eight_bit
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.numerics import FAMILIES, Numerics

_CHANGING = ("attn.query", "attn.key", "attn.value")


@dataclass(frozen=True)
class ProductTypes:
    """`element`: that of tiles which products take; `weights`: what weights are rounded to before they are such elements, or None."""

    element: ir.Type
    weights: ir.Type | None = None


def product_types(online: ir.Operation, numerics: Numerics) -> ProductTypes:
    """Those of an `attn.online`.

    Without 8-bit elements products take what memory holds. Else they take f32, or wider queries; where the target says bf16, that, which
    has all numbers of 8-bit types, or the queries' type. Loads widen what is narrower. Weights have the digits of v's type everywhere,
    as long as queries have 8 bits, too: so all targets compute the same. Where 8-bit matrix instructions have all numbers of the type, and
    no mod makes others of them, products take them as they are.
    """
    q, k = (ir.RankedTensorType(operand.type).element_type for operand in list(online.operands)[:2])
    if not is_eight_bit(k):
        return ProductTypes(q)
    weights = k if is_eight_bit(q) else None
    if _taken_as_they_are(online, numerics):
        return ProductTypes(k)
    with online.context:
        least = ir.F32Type.get() if numerics.narrow == "f32" else ir.BF16Type.get()
    return ProductTypes(q if bits_of(q) >= bits_of(least) else least, weights)


def _taken_as_they_are(online: ir.Operation, numerics: Numerics) -> bool:
    """Whether 8-bit matrix instructions of the target take q, k and v."""
    types = [ir.RankedTensorType(operand.type).element_type for operand in online.operands]
    element = element_of(types[0])
    if numerics.narrow not in FAMILIES or element is None or any(type_ != types[0] for type_ in types):
        return False
    return element.taken_by(numerics.narrow) and all(piece(online, name) is None for name in _CHANGING)
