"""Programs of linear attention as text, and the recurrence that they are compared with."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

_PIECES = {
    "forward": {"chunk_decay": "{0}", "input_decay": "{1} - {0}", "output_decay": "{0}", "decay_mask": "{0} - {1}"},
    "backward": {"chunk_decay": "{0}", "input_decay": "{0}", "output_decay": "{1} - {0}", "decay_mask": "{1} - {0}"},
}


@dataclass(frozen=True)
class Linear:
    """An `attn.chunk` (or, with chunk 0, `attn.linear_attention`) with everything that varies."""

    k: int = 16
    v: int = 8
    chunk: int = 16
    direction: str = "forward"
    channels: str = "none"
    state: str = "kv"
    decay: bool = True
    initial: bool = False
    final: bool = False
    factor: bool = False
    interval: int = 0
    offsets: bool = False
    heads: int = 2
    mods: bool = False
    row_mods: bool = False
    diagonal: bool = False
    result: bool = False
    skip: bool = False
    element: str = "f32"
    score: str = "f32"
    value_block: int = 0

    @property
    def outputs(self) -> list[str]:
        """The results after o."""
        return ["final_state"] * self.final + ["products"] * self.factor + ["states"] * bool(self.interval) + ["diagonal"] * self.diagonal

    @property
    def arguments(self) -> dict[str, str]:
        """The types of the function's arguments by name."""
        columns = {"none": "", "key": f"x{self.k}", "value": f"x{self.v}"}[self.channels]
        rows = {"kv": self.v, "vk": self.k}[self.state]
        found = {"q": f"tensor<?x?x?x{self.k}x{self.element}>", "k": f"tensor<?x?x?x{self.k}x{self.element}>"}
        found["v"] = f"tensor<?x?x?x{self.v}x{self.element}>"
        found |= {"decay": f"tensor<?x?x?{columns}x{self.score}>"} if self.decay else {}
        found |= {"initial": f"tensor<?x?x?x{rows}x{self.score}>"} if self.initial else {}
        found |= {"factor": found["v"]} if self.factor else {}
        found |= {"offsets": "tensor<?xi64>"} if self.offsets else {}
        return found | ({"table": "tensor<?x?xf32>"} if self.mods or self.row_mods or self.result or self.skip else {})

    def text(self) -> str:
        """The module."""
        arguments = self.arguments
        columns = {"kv": self.v, "vk": self.k}[self.state]
        made = {
            "final_state": f"tensor<?x?x?x{columns}x{self.score}>",
            "states": f"tensor<?x?x?x{columns}x{self.score}>",
            "products": f"tensor<?x?x?{'' if self.channels == 'none' else f'x{self.v}'}x{self.score}>",
            "diagonal": f"tensor<?x?x?x{self.score}>",
        }
        results = [arguments["v"], *[made[name] for name in self.outputs]]
        operands = [f"%{name}" for name in arguments if name != "table"]
        segments = [1, 1, 1, *[int(name in arguments) for name in ("decay", "initial", "factor", "offsets")]]
        names = ", ".join(f'"{name}"' for name in self.outputs)
        attributes = f'heads = {self.heads} : i64, direction = "{self.direction}", channels = "{self.channels}", state = "{self.state}", '
        attributes += f"outputs = [{names}], operandSegmentSizes = array<i32: {', '.join(map(str, segments))}>"
        found = [1, int(self.final), int(self.factor), int(self.interval > 0), int(self.diagonal)]
        attributes += f", resultSegmentSizes = array<i32: {', '.join(map(str, found))}>"
        attributes += f", interval = {self.interval} : i64" if self.interval else ""
        attributes += f", chunk = {self.chunk} : i64" if self.chunk else ""
        pieces = [*self._mods(), *(self._factors() if self.chunk else [])]
        op = "attn.chunk" if self.chunk else "attn.linear_attention"
        blocks = f" attributes {{tile.blocks = array<i64: 16, {self.value_block}>}}" if self.value_block else ""
        values = ", ".join(f"%r{n}" for n in range(len(results)))
        return f"""
func.func @attention({", ".join(f"%{n}: {t}" for n, t in arguments.items())}) -> ({", ".join(results)}){blocks} {{
  {values} = "{op}"({", ".join(operands)}) ({{
  ^bb0:
{"".join(pieces)}  }}) {{{attributes}}} : ({", ".join(arguments[o[1:]] for o in operands)}) -> ({", ".join(results)})
  return {values} : {", ".join(results)}
}}
"""

    def _piece(self, name: str, arguments: str, body: str) -> str:
        return f'    "attn.{name}"() ({{\n    ^bb0({arguments}):\n{body}      "attn.yield"(%y) : ({self.score}) -> ()\n    }}) : () -> ()\n'

    def _factors(self) -> list[str]:
        made = []
        for name, formula in _PIECES[self.direction].items():
            arguments = {"chunk_decay": ["total"], "decay_mask": ["prefix_t", "prefix_s"]}.get(name, ["prefix", "total"])
            terms = formula.format(*[f"%{a}" for a in arguments]).split(" - ")
            body = f"      %x = arith.subf {', '.join(terms)} : {self.score}\n" if len(terms) == 2 else ""
            body += f"      %y = math.exp {'%x' if len(terms) == 2 else terms[0]} : {self.score}\n"
            made.append(self._piece(name, ", ".join(f"%{a}: {self.score}" for a in arguments), body))
        return made

    def _mods(self) -> list[str]:
        """x * (1 + table[h, t]) + d for q, k and v; g + table[h, t] * (d + 1) for decays. `row_mods`: x * (1 + table[h, t]) alone,
        `result`: o times that, `skip`: what o_t gets of v_t.
        """
        places = "%b: index, %h: index, %t: index, %d: index"
        read = "      %e0 = tensor.extract %table[%h, %t] : tensor<?x?xf32>\n"
        read += "      %e = arith.extf %e0 : f32 to f64\n" if self.score == "f64" else "      %e = arith.mulf %e0, %unit : f32\n"
        number = "      %di = arith.index_cast %d : index to i64\n      %df = arith.sitofp %di : i64 to S\n"
        one = "      %unit = arith.constant 1.0 : S\n"
        change = "      %f = arith.addf %e, %unit : S\n      %m = arith.mulf %x, %f : S\n      %y = arith.addf %m, %df : S\n"
        scale = "      %f = arith.addf %e, %unit : S\n      %y = arith.mulf %x, %f : S\n"
        decay = "      %f = arith.addf %df, %unit : S\n      %m = arith.mulf %e, %f : S\n      %y = arith.addf %x, %m : S\n"
        made = [(name, number + change if self.mods else scale) for name in ("query", "key", "value") if self.mods or self.row_mods]
        made += [("result", scale)] if self.result else []
        made += [("decay", number + decay)] if self.mods else []
        arguments = f"%x: {self.score}, {places}"
        skip = (one + read + "      %y = arith.addf %e, %unit : S\n").replace("S", self.score)
        behind = [self._piece("skip", "%b: index, %h: index, %t: index", skip)] if self.skip else []
        return [*[self._piece(name, arguments, (one + read + body).replace("S", self.score)) for name, body in made], *behind]


def inputs(
    program: Linear, batch: int, heads: dict[str, int], length: int, seed: int = 0, gate: float = 1.0, **more: Any
) -> dict[str, Any]:
    """Random arguments in float64; log decays in [-gate, 0]. `heads` has those of "q", "k", "v", "decay"; `more` replaces arguments."""
    rng = np.random.default_rng(seed)
    columns = {"none": (), "key": (program.k,), "value": (program.v,)}[program.channels]
    every = max(heads.values())
    sequences = len(more["offsets"]) - 1 if program.offsets else batch
    rows = (program.k, program.v) if program.state == "kv" else (program.v, program.k)
    made: dict[str, Any] = {
        "q": rng.normal(size=(batch, heads["q"], length, program.k)) / program.k**0.5,
        "k": rng.normal(size=(batch, heads["k"], length, program.k)),
        "v": rng.normal(size=(batch, heads["v"], length, program.v)),
        "decay": -gate * rng.random((batch, heads.get("decay", every), length, *columns)),
        "initial": rng.normal(size=(sequences, every, *rows)),
        "factor": rng.normal(size=(batch, heads.get("factor", every), length, program.v)),
        "table": -0.05 * rng.random((every, length)),
    }
    made.update(more)
    return {name: made[name] for name in program.arguments}


def recurrence(program: Linear, given: dict[str, Any]) -> dict[str, Any]:
    """o and the outputs, position by position in float64."""
    x = {name: np.asarray(value, np.float64) for name, value in given.items() if name != "offsets"}
    every, length = [x["q"], x["k"], x["v"], x.get("decay")][program.heads].shape[1], x["q"].shape[2]
    columns = {"none": 1, "key": program.k, "value": program.v}[program.channels]
    batch = len(x["q"])

    def change(name: str) -> Any:
        value = x[name]
        if program.mods or program.row_mods:
            heads = value.shape[1]
            value = value * (1 + x["table"][:heads, :length, None]) + program.mods * np.arange(value.shape[3])
        return np.repeat(value, every // value.shape[1], axis=1)

    q, k, v = change("q"), change("k"), change("v")
    g = x.get("decay", np.zeros((batch, every, length, columns)))
    g = np.repeat(g.reshape(batch, -1, length, columns), every // g.shape[1], axis=1)
    if program.mods:
        g = g + x["table"][:, :length, None] * np.arange(1, columns + 1)
    offsets = given.get("offsets")
    spans = [(b, 0, length) for b in range(batch)]
    if offsets is not None:
        spans = [(0, int(a), int(e)) for a, e in itertools.pairwise(np.asarray(offsets, int))]
    interval = program.interval or 1
    rows = -(-length // interval) if offsets is None else length // interval + len(spans)
    o, final = np.zeros((batch, every, length, program.v)), np.zeros((len(spans), every, program.k, program.v))
    states = np.zeros((batch, every, rows, program.k, program.v))
    for number, (b, begin, end) in enumerate(spans):
        first = 0 if offsets is None else begin // interval + number
        state = np.zeros((every, program.k, program.v))
        if "initial" in x:
            state = x["initial"][number] if program.state == "kv" else np.swapaxes(x["initial"][number], 1, 2)
        order = range(begin, end) if program.direction == "forward" else range(end - 1, begin - 1, -1)
        for t in order:
            factor = np.exp(g[b, :, t])
            factor = factor[:, None, :] if program.channels == "value" else factor[:, :, None]
            at = t - begin
            if program.direction == "forward":
                if at % interval == 0:
                    states[b, :, first + at // interval] = state
                state = factor * state + k[b, :, t, :, None] * v[b, :, t, None, :]
                o[b, :, t] = np.einsum("hk,hkv->hv", q[b, :, t], state)
            else:
                state = state + k[b, :, t, :, None] * v[b, :, t, None, :]
                o[b, :, t] = np.einsum("hk,hkv->hv", q[b, :, t], state)
                state = factor * state
                if at % interval == 0:
                    states[b, :, first + at // interval] = state
        final[number] = state
    if program.state == "vk":
        final, states = np.swapaxes(final, -1, -2), np.swapaxes(states, -1, -2)
    factor = 1 + x["table"][None, :every, :length, None] if program.result else 1.0
    skip = (1 + x["table"][None, :every, :length, None]) * np.repeat(x["v"], every // x["v"].shape[1], axis=1) if program.skip else 0.0
    made = {"o": o * factor + skip, "final_state": final, "states": states.reshape(batch, every, -1, states.shape[-1])}
    if "factor" in x:
        own, repeated = (q * k).sum(3, keepdims=True) * v, np.repeat(x["factor"], every // x["factor"].shape[1], axis=1)
        products, made["diagonal"] = (o - own) * repeated, (own * repeated).sum(-1)
        made["products"] = products.sum(-1) if program.channels == "none" else products
    return {name: made[name] for name in ("o", *program.outputs)}


def error(found: Any, wanted: Any) -> float:
    """rms(found - wanted) / rms(wanted)."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if not wanted.size:
        return 0.0 if found.shape == wanted.shape else np.inf
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / max(1e-30, np.sqrt(np.mean(wanted**2))))
