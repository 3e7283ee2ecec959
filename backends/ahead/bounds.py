"""C++ that checks, before kernels run, that captured tensors are read inside of their bounds: `intervals.capture_bounds` with numbers.

Every node of an index expression becomes a line that computes its range, see `attn_bounds.h`.
"""

import json
from collections.abc import Mapping, Sequence

from attn_mlir.backends.ahead.request import Request
from attn_mlir.passes.intervals.describe import describe
from attn_mlir.passes.intervals.nodes import Bound, depends_on, terms_of

_SIZES = {"b": "B", "h": "HQ", "h_kv": "HKV", "h_v": "HKV", "q_idx": "SQ", "kv_idx": "SKV", "t": "SQ", "d": "D", "dv": "DV"}
_HEAD = "static int check_reads(const int64_t *sizes, const attn::Value *values) {"


def check_reads(request: Request) -> str:
    """The function `check_reads` of a library."""
    plan = request.plan
    with plan.lock, plan.pool.scratch():
        writer = _Writer({**_SIZES, "h_v": "HV"} if request.linear else _SIZES)
        for read in plan.reads:
            # By this name, so that a text says what the function's author wrote.
            name = request.names[3 + read.tensor]
            text = describe(read.index, lambda position: request.names[position] if isinstance(position, int) else "a computed index")
            index, tensor = writer.range(read.index), f"values[{3 + read.tensor}].tensor"
            wraps = str(read.wraps).lower()
            given = f"{index}, {tensor}, {read.dimension}, {wraps}, {json.dumps(name)}, {json.dumps(text)}"
            unless = "if (!attn::trusts_elements()) " if read.from_data else ""
            writer.lines.append(f"  {unless}if (int code = attn::check_read({given})) return code;")
    return "\n".join([_HEAD, "  (void)sizes, (void)values;", *writer.lines, "  return 0;", "}"])


class _Writer:
    """Lines that compute ranges and truths, each once."""

    def __init__(self, sizes: Mapping[str, str]) -> None:
        self._sizes = sizes
        self.lines: list[str] = []
        self._ranges: dict[Bound, str] = {}
        self._truths: dict[Bound, str] = {}

    def range(self, node: Bound) -> str:
        """The name of the node's `attn::Range`."""
        if node not in self._ranges:
            self._ranges[node] = self._define("attn::Range", self._range(node))
        return self._ranges[node]

    def _define(self, type_: str, text: str) -> str:
        name = f"x{len(self.lines)}"
        self.lines.append(f"  const {type_} {name} = {text};")
        return name

    def _parts(self, nodes: Sequence[Bound]) -> str:
        """The name of an array of ranges."""
        ranges = ", ".join([self.range(node) for node in nodes])
        name = f"x{len(self.lines)}"
        self.lines.append(f"  const attn::Range {name}[] = {{{ranges}}};")
        return name

    def _range(self, node: Bound) -> str:
        match node.op:
            case "const":
                return f"attn::point({_literal(node.data)})"
            case "var":
                return f"attn::range(0, sizes[attn::{self._sizes[node.data]}] - 1)"
            case "dim":
                return f"attn::point(values[{node.data[0]}].tensor.shape[{node.data[1]}])"
            case "value" if isinstance(node.data, int):
                return f"attn::point(values[{node.data}].word)"
            case "sum":
                constant, terms = terms_of(node)
                parts = self._parts([atom for atom, _ in terms])
                factors = ", ".join(_literal(factor) for _, factor in terms)
                name = f"x{len(self.lines)}"
                self.lines.append(f"  const int64_t {name}[] = {{{factors}}};")
                return f"attn::scaled_sum({_literal(constant)}, {parts}, {name}, {len(terms)})"
            case "mul" | "floordiv" | "mod":
                function = {"mul": "product", "floordiv": "quotient", "mod": "remainder"}[node.op]
                return f"attn::{function}({self.range(node.args[0])}, {self.range(node.args[1])})"
            case "min" | "max":
                function = "least" if node.op == "min" else "most"
                return f"attn::{function}({self._parts(node.args)}, {len(node.args)})"
            case "abs":
                return f"attn::absolute({self.range(node.args[0])})"
            case "select":
                condition, a, b = node.args
                first, second = self._refined(condition, a), self._refined(~condition, b)
                return f"attn::chosen({self._truth(condition)}, {first}, {second})"
            case "gather" if isinstance(node.data, int):
                return f"attn::elements(values[{node.data}].tensor, {self._parts(node.args)})"
            case "ge0" | "eq0" | "and" | "or" | "not" | "bool" | "unknown_bool":
                return "attn::range(0, 1)"
        return "attn::Range()"

    def _refined(self, condition: Bound, arm: Bound) -> str:
        """The range of `arm` where `condition` holds: x + n under x < 0 has x <= -1."""
        if condition.op != "ge0":
            return self.range(arm)
        x = condition.args[0]
        for plus in (True, False):
            rest = arm - x if plus else arm + x
            if any(depends_on(rest, leaf) for leaf, _ in terms_of(x)[1] if leaf.op not in ("dim", "value")):
                continue
            return self._define("attn::Range", f"attn::refined({self.range(x)}, {self.range(rest)}, {str(plus).lower()})")
        return self.range(arm)

    def _truth(self, node: Bound) -> str:
        if node not in self._truths:
            self._truths[node] = self._define("attn::Truth", self._truth_of(node))
        return self._truths[node]

    def _truth_of(self, node: Bound) -> str:
        match node.op:
            case "bool":
                return "{true, false}" if node.data else "{false, true}"
            case "ge0":
                return f"attn::at_least_zero({self.range(node.args[0])})"
            case "eq0":
                return f"attn::is_zero({self.range(node.args[0])})"
            case "not":
                return f"attn::opposite({self._truth(node.args[0])})"
            case "and" | "or":
                function, made = "both" if node.op == "and" else "either", self._truth(node.args[0])
                for argument in node.args[1:]:
                    made = f"attn::{function}({made}, {self._truth(argument)})"
                return made
        return "{true, true}"


def _literal(number: int) -> str:
    """A number as C++ has it; what does not fit into 64 bits is as far as can be."""
    if number <= -(2**63):
        return "INT64_MIN"
    return f"int64_t({min(number, 2**63 - 1)})"
