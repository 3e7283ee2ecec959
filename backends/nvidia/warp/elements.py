"""Element types: a row in a table says how each is stored, packed in registers, and multiplied."""

from dataclasses import dataclass

from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class ElementType:
    """`bits` of an element in memory; `memory` and `register` are its types in C++, of one element and of what a thread holds.

    A register holds `packed` elements, of which `pack` makes two of floats and `unpack` turns two into a float2. `multiplied`: how wgmma
    calls it, if it takes it.
    """

    name: str
    bits: int
    memory: str
    register: str
    packed: int = 1
    pack: str = ""
    unpack: str = ""
    narrow: str = ""
    """What makes one element, as it is in memory, of a float; empty where a register holds just that."""
    widen: str = ""
    """What makes a float of an element in memory."""
    multiplied: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of an element in memory."""
        return self.bits // 8


_TABLE = (
    ElementType("f16", 16, "__half", "uint32_t", 2, "attn::pack_f16", "attn::unpack_f16", "__float2half_rn", "__half2float", "f16"),
    ElementType(
        "bf16",
        16,
        "__nv_bfloat16",
        "uint32_t",
        2,
        "attn::pack_bf16",
        "attn::unpack_bf16",
        "__float2bfloat16_rn",
        "__bfloat162float",
        "bf16",
    ),
    ElementType("f8E4M3FN", 8, "unsigned char", "uint32_t", 4, "attn::pack_e4m3", multiplied="e4m3"),
    ElementType("f8E5M2", 8, "unsigned char", "uint32_t", 4, "attn::pack_e5m2", multiplied="e5m2"),
    ElementType("f32", 32, "float", "float"),
    ElementType("i32", 32, "int", "int"),
    ElementType("i1", 8, "bool", "bool"),
)
ELEMENTS = {element.name: element for element in _TABLE}


def element(type_: ir.Type | str) -> ElementType:
    """By an MLIR type or its name. Raises UnsupportedError for one that kernels cannot hold."""
    found = ELEMENTS.get(str(type_))
    if found is None:
        raise UnsupportedError(f"warp: kernels for sm_90a hold elements of {', '.join(ELEMENTS)}, not {type_}")
    return found
