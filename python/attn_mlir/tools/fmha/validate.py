"""Whether results of attn-fmha are right, by CK's tolerances."""

import math
from dataclasses import dataclass

import torch

from attn_mlir.tools.fmha import reference
from attn_mlir.tools.fmha.options import FmhaOptions
from attn_mlir.tools.fmha.problem import DTYPES, FmhaProblem

_FORWARD = {"fp16": 1e-3, "bf16": 1e-2, "fp32": 1e-5}
_BACKWARD = {"fp16": 1e-2, "bf16": 1e-2, "fp32": 1e-4}
_LSE = 1e-4
_ROW = 0.05


@dataclass(frozen=True)
class WrongTensor:
    """A tensor that is wrong: how many of its elements or rows, the worst of them, and what was allowed."""

    name: str
    wrong: int
    of: int
    largest: float
    tolerance: float
    of_what: str = "elements"

    def __str__(self) -> str:
        off = f"{self.wrong} of {self.of} {self.of_what} ({100.0 * self.wrong / self.of:.2g} %) are off, by up to {self.largest:.3g}"
        more = f" and {100 * _ROW:g} % of a row's norm" if self.of_what == "rows" else ""
        return f"{self.name}: {off}; allowed: {self.tolerance:.3g}{more}"


def faults(problem: FmhaProblem, made: tuple[torch.Tensor, ...]) -> list[WrongTensor]:
    """What is wrong of the results x, given the reference r: not a number, or |x - r| > t + t |r| with CK's tolerance t.

    CK's tolerances are for inputs from 0 to 1 (-init=uf). Where others exceed them, twice the largest error that the dense formula has,
    computed in -prec, is allowed, too. They are absolute besides, and gradients may be smaller than they are altogether: so each row of a
    tensor must also be right in its own size, but for what rounding does.
    """
    o = problem.options
    dtype, device = (torch.float64, "cpu") if o.validate == 1 else (torch.float32, problem.q.device.type)
    wanted, found = reference.results(problem, dtype, device), reference.compared(problem, made)
    errors = {name: _errors(found[name].detach().to(device), want) for name, want in wanted.items()}
    told = {name: _fault(name, errors[name], want, _tolerance(o, name)) for name, want in wanted.items()}
    if o.init != "uf" and any(told.values()):
        rounded = reference.results(problem, DTYPES[o.precision], problem.q.device.type)
        allowed = {name: 2 * float(_errors(rounded[name].to(device), want).nan_to_num(0.0).max()) for name, want in wanted.items()}
        told = {name: fault and _fault(name, errors[name], wanted[name], fault.tolerance, allowed[name]) for name, fault in told.items()}
    rows = _rows(problem, errors, wanted, device)
    return [fault for name in wanted if (fault := told[name] or rows.get(name)) is not None]


def _rows(problem: FmhaProblem, errors: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], device: str) -> dict[str, WrongTensor]:
    """The tensors of which rows are off by more than 5 % of their norm and four times the largest error that rounding makes in one."""
    off = {name: error.norm(dim=-1) - _ROW * wanted[name].norm(dim=-1) for name, error in errors.items() if name != "lse"}
    if not any(bool((row > 0).any()) for row in off.values()):
        return {}
    rounded = reference.results(problem, torch.float32, device, DTYPES[problem.options.precision])
    made: dict[str, WrongTensor] = {}
    for name, row in off.items():
        allowed = 4 * float((rounded[name].to(DTYPES[problem.options.precision]) - wanted[name]).norm(dim=-1).max())
        wrong = row > allowed
        if wrong.any():
            norms = errors[name].norm(dim=-1)[wrong]
            made[name] = WrongTensor(name, int(wrong.sum()), wrong.numel(), float(norms.max()), allowed, "rows")
    return made


def _tolerance(options: FmhaOptions, name: str) -> float:
    if name == "lse":
        return _LSE
    if not options.backward:
        return _FORWARD[options.precision]
    wide = options.precision == "bf16" and min(options.head_dim, options.value_dim) > 128
    return 3.2e-2 if wide else _BACKWARD[options.precision]


def _errors(made: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    if made.shape != want.shape:
        raise AssertionError(f"a result has shape {tuple(made.shape)}, not {tuple(want.shape)}")
    made = made.to(want.dtype)
    return torch.where(made == want, 0.0, (made - want).abs())  # both are -inf in the lse of a fully masked row


def _fault(name: str, error: torch.Tensor, want: torch.Tensor, tolerance: float, least: float = 0.0) -> WrongTensor | None:
    """None where all is right; `least` is allowed everywhere."""
    bound = (tolerance + tolerance * want.abs().nan_to_num(0.0, 0.0, 0.0)).clamp(min=least)
    off = ~(error <= bound)
    if not off.any():
        return None
    return WrongTensor(name, int(off.sum()), off.numel(), float(error.nan_to_num(math.inf).max()), max(tolerance, least))
