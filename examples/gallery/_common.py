"""What the variants of the gallery share: how one is described, and the pieces of their plain formulas."""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
Row = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """How large inputs are; `kv_heads` is for variants whose queries share keys (GQA)."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    length: int = 127
    dim: int = 16


def qkv(n: Sizes) -> dict[str, Tensor]:
    """Random normal q [B, heads, S, D], k and v [B, kv_heads, S, D]."""
    q, k, v = (torch.randn(n.batch, heads, n.length, n.dim) for heads in (n.heads, n.kv_heads, n.kv_heads))
    return {"q": q, "k": k, "v": v}


@dataclass(frozen=True)
class Variant:
    """A published attention: what a file of the gallery calls `variant`.

    `run` and `reference` take the tensors of `inputs` by name and return o, by attn-mlir and by the plain formula. Floats among
    the inputs have gradients. `flex` makes of the same tensors what FlexAttention takes (score_mod, mask_mod), where that says the
    same. The picture is of `mask`, given the inputs, of `row`, or else of the weights that an identity matrix for v gives.
    """

    run: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    inputs: Callable[[Sizes], dict[str, Tensor]] = qkv
    flex: Callable[..., dict[str, Any]] | None = None
    mask: Callable[..., Callable[..., Any]] | None = None
    row: Row | None = None
    name: str = ""
    module: ModuleType | None = None

    @property
    def text(self) -> list[str]:
        """The paragraphs of the file's docstring: title, paper, and so on."""
        return inspect.cleandoc(self.module.__doc__ or "" if self.module else "").split("\n\n")

    @property
    def title(self) -> str:
        """The first line, without its full stop."""
        return self.text[0].removesuffix(".")

    @property
    def paper(self) -> str:
        """The arXiv number."""
        found = re.search(r"arXiv (\d{4}\.\d{5})", "\n".join(self.text))
        return found[1] if found else ""

    @property
    def code(self) -> str:
        """What the user writes: the file between its imports and the reference."""
        source = (HERE / f"{self.name}.py").read_text(encoding="utf-8")
        body = ast.parse(source).body
        imports = max(node.end_lineno or 0 for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
        end = next(node.lineno for node in body if isinstance(node, ast.FunctionDef) and node.name == "reference")
        return "\n".join(source.splitlines()[imports : end - 1]).strip()


def scores(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """scale q k^T, [B, heads of q, Sq, Skv]; scale None is 1/sqrt(D)."""
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def weigh(p: Tensor, v: Tensor) -> Tensor:
    """p v for weights [B, heads of q, Sq, Skv]."""
    return p @ v.repeat_interleave(p.shape[1] // v.shape[1], 1)


def positions(s: Tensor) -> tuple[Tensor, Tensor]:
    """The positions i [Sq, 1] and j [Skv] of scores."""
    return torch.arange(s.shape[-2], device=s.device)[:, None], torch.arange(s.shape[-1], device=s.device)


def softmax(s: Tensor, kept: Tensor) -> Tensor:
    """Softmax over the keys that are kept; a row without any is 0."""
    return torch.softmax(s.masked_fill(~kept, -1e300 if s.dtype == torch.float64 else -1e30), -1) * kept


def load(name: str) -> Variant:
    """The variant of the file examples/gallery/<name>.py."""
    key = f"attn_mlir_gallery_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[key] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    module = sys.modules[key]
    return Variant(**{**vars(module.variant), "name": name, "module": module})


def relative_errors(variant: Variant, sizes: Sizes, dtype: torch.dtype, device: str = "cpu") -> dict[str, float]:
    """||a - b|| / ||b|| of o and of the gradient of every float input, against the formula in float64 on the same inputs."""
    drawn = {name: x.to(dtype) if x.is_floating_point() else x for name, x in variant.inputs(sizes).items()}
    ours = _results(variant.run, drawn, dtype, dtype, device)
    theirs = _results(variant.reference, drawn, torch.float64, dtype, "cpu")
    return {name: float((ours[name] - b).norm() / b.norm().clamp(min=1e-300)) for name, b in theirs.items()}


def _results(
    function: Callable[..., Tensor], drawn: Mapping[str, Tensor], dtype: torch.dtype, rounded: torch.dtype, device: str
) -> dict[str, Tensor]:
    """o and gradients, of inputs and of an upstream gradient that are numbers of the type `rounded`."""
    given = {name: x.to(device, dtype).requires_grad_() if x.is_floating_point() else x.to(device) for name, x in drawn.items()}
    leaves = {name: x for name, x in given.items() if x.requires_grad}
    o = function(**given)
    upstream = torch.sin(torch.arange(o.numel(), dtype=torch.float64)).view(o.shape).to(rounded)
    gradients = torch.autograd.grad(o, [*leaves.values()], upstream.to(o.device, o.dtype))
    found = {"o": o.detach(), **{f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}}
    return {name: x.to("cpu", torch.float64) for name, x in found.items()}
