"""Writes an expression the way its author would have, for messages."""

from collections.abc import Callable, Hashable

from attn_mlir.passes.intervals.nodes import Bound, terms_of

_INFIX = {"mul": "*", "floordiv": "//", "mod": "%"}


def describe(node: Bound, name_of: Callable[[Hashable], str]) -> str:
    """Python-like text; `name_of` names captured tensors and scalars."""
    match node.op:
        case "const" | "var":
            return str(node.data)
        case "value":
            return name_of(node.data)
        case "dim":
            return f"{name_of(node.data[0])}.shape[{node.data[1]}]"
        case "sum":
            return _sum(node, name_of)
        case "gather":
            return f"{name_of(node.data)}[{', '.join(describe(a, name_of) for a in node.args)}]"
        case "min" | "max" | "abs":
            return f"{node.op}({', '.join(describe(a, name_of) for a in node.args)})"
        case "select" if node.args[0].op == "ge0":
            condition, a, b = node.args
            if condition.args[0] is -b - 1:  # Python's negative index: i + size if i < 0 else i
                return describe(b, name_of)
            return f"({describe(a, name_of)} or {describe(b, name_of)})"
        case "select" if node.args[0].op == "eq0" and node.args[0].args[0] is node.args[2]:  # a divisor that is not to be 0
            return describe(node.args[2], name_of)
        case "select":
            return f"({describe(node.args[1], name_of)} or {describe(node.args[2], name_of)})"
    if node.op in _INFIX:
        return f" {_INFIX[node.op]} ".join(_grouped(a, name_of) for a in node.args)
    return "a computed index"


def _grouped(node: Bound, name_of: Callable[[Hashable], str]) -> str:
    text = describe(node, name_of)
    return f"({text})" if node.op == "sum" or node.op in _INFIX else text


def _sum(node: Bound, name_of: Callable[[Hashable], str]) -> str:
    constant, terms = terms_of(node)
    parts = []
    for atom, k in sorted(terms, key=lambda term: term[1] < 0):
        factor = "" if abs(k) == 1 else f"{abs(k)} * "
        parts.append((f"{factor}{_grouped(atom, name_of) if factor else describe(atom, name_of)}", k > 0))
    if constant:
        parts.append((str(abs(constant)), constant > 0))
    text = parts[0][0] if parts[0][1] else f"-{parts[0][0]}"
    return text + "".join(f" {'+' if positive else '-'} {part}" for part, positive in parts[1:])
