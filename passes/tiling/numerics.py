"""The numbers in kernels of a target: `tile.numerics` of functions, which the target writes before tiling."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass

NUMERICS = "tile.numerics"
_PREFIXES = ("f32", "f64", "wider")
FAMILIES = ("nuz", "ocp")
"""Of 8-bit matrix instructions, see `Element.taken_by`."""
_NARROW = ("f32", "bf16", *FAMILIES)


@dataclass(frozen=True)
class Numerics:
    """What a target wants of numbers; a function without `tile.numerics` has these defaults.

    - `prefix`: element type of sums of log decays. f64 keeps them exact enough for chunks whose decays add up to hundreds; "wider" is f64
      in chunks whose inputs are no narrower than f32, and f32 for 16-bit inputs, which need no more.
    - `wide_decay`: the chunk decay of a state has the type of those sums, too; rounded by all chunks alike where their decays are
      the same, it would make errors that add up over a sequence.
    - `sub_chunk`: where channels have decays of their own, pairs of positions of a chunk are one by one in blocks of so many (of at least
      16 in scans that round to 16 bits and make products, whose differences are gradients), and products of tiles beyond.
    - `sub_chunk_keys`: the same where key channels of 16-bit inputs have decays and no products are made; 0 as `sub_chunk`.
    - `widen`: products of linear attention multiply scores even where its inputs have 16 bits.
    - `flushing`: products take numbers below 2^-14 in f16 as 0. Then weights of a scan with products of its output (not where channels have
      decays), and what enters the state of a backward scan, are two tiles, a hi/lo split. Scans with products of bf16 always have two
      tiles of weights; where channels of v have decays, all that round to 16 bits have two of v times weights.
    - `narrow`: what products of attention with 8-bit elements take: "f32", or "bf16", where queries of 16 bits keep their type, or "nuz" or
      "ocp", where 8-bit matrix instructions take elements as they are, as far as they have them; else as "bf16".
    - `slots`: programs of "elements" scatter to slots, as those of "pairs" do, not one after the other.
    """

    prefix: str = "f32"
    sub_chunk: int = 16
    sub_chunk_keys: int = 0
    widen: bool = False
    flushing: bool = False
    wide_decay: bool = False
    slots: bool = False
    narrow: str = "f32"


@dataclass(frozen=True)
class WriteNumerics(Pass):
    """Gives functions that hold ops to make kernels of the `tile.numerics` of a target."""

    numerics: ClassVar[Numerics]

    def run(self, module: ir.Operation) -> bool:
        with module.context:
            for function in [view.operation for view in module.regions[0].blocks[0].operations]:
                bodies = [block for region in function.regions for block in region.blocks]
                if any(view.operation.name.startswith("attn.") for block in bodies for view in block.operations):
                    wanted = asdict(self.of(function)).items()
                    given = {name: _attribute(value) for name, value in wanted if value != getattr(Numerics, name)}
                    function.attributes[NUMERICS] = ir.DictAttr.get(given)
        return True

    def of(self, function: ir.Operation) -> Numerics:
        """Those of one function."""
        return self.numerics


def numerics_of(function: ir.Operation, name: str) -> Numerics | None:
    """Those of a function; None after an error, which the pass called `name` reports."""
    try:
        return _read(function)
    except ValueError as error:
        function.location.emit_error(f"{name}: '{NUMERICS}' {error}")
        return None


def _read(function: ir.Operation) -> Numerics:
    given = function.attributes[NUMERICS] if NUMERICS in function.attributes else ir.DictAttr.get({}, function.context)
    if not isinstance(given, ir.DictAttr):
        raise ValueError(f"must be a dictionary, got {given}")
    values: dict[str, Any] = {}
    for name, attribute in ((named.name, named.attr) for named in given):
        known = getattr(Numerics, name, None) if name in Numerics.__dataclass_fields__ else None
        value = attribute.value if isinstance(attribute, (ir.StringAttr, ir.BoolAttr, ir.IntegerAttr)) else None
        if known is None or type(value) is not type(known):
            hint = "; 'exact_carry' is called 'wide_decay' now" if name == "exact_carry" else ""
            raise ValueError(f"takes {', '.join(Numerics.__dataclass_fields__)}, got {name} = {attribute}{hint}")
        values[name] = value
    found = Numerics(**values)
    if found.prefix not in _PREFIXES:
        raise ValueError(f"takes `prefix` as f32, f64 or wider, got '{found.prefix}'")
    if found.sub_chunk < 1 or found.sub_chunk & (found.sub_chunk - 1):
        raise ValueError(f"`sub_chunk` must be a power of two, got {found.sub_chunk}")
    if found.sub_chunk_keys < 0 or found.sub_chunk_keys & (found.sub_chunk_keys - 1):
        raise ValueError(f"`sub_chunk_keys` must be 0 or a power of two, got {found.sub_chunk_keys}")
    if found.narrow not in _NARROW:
        raise ValueError(f"takes `narrow` as {', '.join(_NARROW)}, got '{found.narrow}'")
    return found


def _attribute(value: str | int | bool) -> ir.Attribute:
    match value:
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.StringAttr.get(value)
