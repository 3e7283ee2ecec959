"""What the derivation makes of a traced program for partial results: programs that give states, and the rules to merge and to end them."""

import dataclasses
import functools
from typing import Any, NoReturn

from attn_mlir.backends.program import function_named, reported
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.emit import texts_of
from attn_mlir.frontend.program import Traced
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.explain import why_several
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import block_of, find_all, pieces, walk
from attn_mlir.registry import registry
from attn_mlir.runtime.scalar_code import ScalarCode, code_of

_ONLINE = "attn-simplify,attn-online-rewrite,attn-guard-empty-rows{every=true}"
_EXPOSED = "attn-expose-states{{accumulator={number} rounded={rounded}}},attn-recover-rows"
WIDE_RESULTS = "attn.wide_results"
"""The attribute of a module whose results are parts of sums: no backend rounds them to 16 bits before they are added up."""
_FORMS: dict[tuple[str, bool], "PartialForm"] = {}
_LIMIT = 256
"""Forms that are remembered; a program has one, and as many accumulators are programs, too."""


@dataclasses.dataclass(frozen=True, eq=False)
class PartialForm:
    """A program whose results are partial: one entry for each accumulator, the first of which gives the states, too."""

    entries: tuple[Entry, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    """The names of the row outputs that `finalize` makes after o."""
    init: ScalarCode
    merge: ScalarCode
    finalize: ScalarCode
    source: tuple[Traced, str]
    """What was traced, and its online form."""
    detached: bool
    """Whether the row sees its states through `detach` alone, so that they have no gradient."""
    derived: bool
    """Whether that is all that the row says of its derivative: online forms have no `detach`."""

    def __deepcopy__(self, _: Any) -> "PartialForm":
        return self  # nothing of it changes

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(
            "partial results hold compiled code and are not pickled: send accumulators and states, which Partial.apply goes through, and "
            "make the partial result there"
        )

    @functools.cached_property
    def rounded(self) -> tuple[Entry, ...]:
        """The same entries with accumulators in the type of v, whose gradients have this type, as products of 16 bits take them."""
        with LOCK, loaded(), reported():
            return tuple(Entry(_exposed(*self.source, number, rounded=True)) for number in range(len(self.entries)))

    def merges_with(self, other: "PartialForm") -> bool:
        """Whether both are of one row, as far as merging and ending it tell."""
        rules = ((form.states, form.outputs, form.init, form.merge, form.finalize) for form in (self, other))
        return self is other or len(set(rules)) == 1


def form_of(traced: Traced) -> PartialForm:
    """The form of a traced program, made at its first use. Raises UnsupportedError where its row has no merge, and says why."""
    key = traced.text, traced.packed
    found = _FORMS.get(key)
    if found is None:
        with LOCK, loaded(), reported():
            found = _read(traced)
            if len(_FORMS) >= _LIMIT:
                _FORMS.clear()
            _FORMS[key] = found
    return found


def _read(traced: Traced) -> PartialForm:
    module = ir.Module.parse(traced.located)
    detached, derived = _detached(module)
    reasons = [reason for attention in find_all(module.operation, "attn.attention") for reason in why_several(attention)]
    if reasons:
        raise UnsupportedError(
            "this row has no partial results: keys that are seen apart cannot be merged, since it takes more than one pass over them "
            f"({'; '.join(reasons)}). Call attention without return_partial on all keys"
        )
    Pipeline.parse(_ONLINE, registry()).run(module)
    online, function = find_all(module.operation, "attn.online")[0], function_named(module, "attention")
    parts = {name: pieces(online, f"attn.{name}") for name in ("init", "merge", "finalize")}
    if not parts["merge"]:
        raise UnsupportedError("this row has no partial results: no rule to merge them was confirmed for it")
    codes = {name: code_of(block_of(found[0]), function) for name, found in parts.items()}
    count = ir.IntegerAttr(online.attributes["accumulators"]).value
    states = [location_name(a.location) or "row" for a in list(block_of(parts["finalize"][0]).arguments)[count + 3 :]]
    _, located = texts_of(module)
    entries = tuple(Entry(_exposed(traced, located, number)) for number in range(count))
    names = tuple(name if states.count(name) == 1 else f"{name}_{n}" for n, name in enumerate(states))
    return PartialForm(
        entries, names, traced.outputs, codes["init"], codes["merge"], codes["finalize"], (traced, located), detached, derived
    )


def _detached(module: ir.Module) -> tuple[bool, bool]:
    """Whether a row uses all reductions through `detach` alone, and whether it says nothing else of its derivative."""
    ops = [op for row in find_all(module.operation, "attn.row") for op in walk(row)]
    slopes = any(op.name == "attn.slope" for op in ops)
    of = [op.operands[0] for op in ops if op.name == "attn.detach"]
    if not of:
        return False, not slopes
    through = all([use.owner.operation.name == "attn.detach" for op in ops if op.name == "attn.reduce" for use in op.results[0].uses])
    whole = all([not isinstance(value, ir.BlockArgument) and value.owner.operation.name == "attn.reduce" for value in of])
    return through and whole, through and whole and not slopes


def _exposed(traced: Traced, online: str, number: int, rounded: bool = False) -> Traced:
    """The program that gives accumulator `number`, traced as it were: a row whose outputs are the states."""
    module = ir.Module.parse(online)
    Pipeline.parse(_EXPOSED.format(number=number, rounded=str(rounded).lower()), registry()).run(module)
    attention = find_all(module.operation, "attn.attention")[0]
    outputs = tuple(ir.StringAttr(name).value for name in attention.attributes["outputs"])
    if not rounded:
        module.operation.attributes[WIDE_RESULTS] = ir.UnitAttr.get()
    text, located = texts_of(module)
    return dataclasses.replace(traced, text=text, located=located, outputs=outputs)
