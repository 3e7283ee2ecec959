"""Transforms of torch, each as a function from a function of one tensor to another one, so that any of them can be composed."""

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.functional as functional
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils.checkpoint import checkpoint

Function = Callable[[torch.Tensor], torch.Tensor]


def probe(x: torch.Tensor) -> torch.Tensor:
    """A direction for tensors of this shape."""
    return (torch.arange(x.numel(), dtype=x.dtype) * 0.7).sin().reshape(x.shape) + 0.1


def scalar(f: Function) -> Function:
    return lambda x: f(x).square().sum()


def _contracted(jacobian: Any, x: torch.Tensor) -> torch.Tensor:
    return (jacobian * probe(x)).sum(tuple(range(jacobian.dim() - x.dim(), jacobian.dim())))


def _vjp(f: Function) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        o, pull = vjp(f, x)[:2]
        return pull(probe(o))[0]

    return run


def _with_graph(f: Function) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        leaf = x if x.requires_grad else x.detach().clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)[0]

    return run


def _dual(f: Function) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            o = f(forward_ad.make_dual(x, probe(x)))
            tangent: Any = forward_ad.unpack_dual(o).tangent
            return torch.zeros_like(o) if tangent is None else tangent

    return run


def _dual_backward(f: Function) -> Function:
    """The tangent of a gradient, both of plain tensors."""

    def run(x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            leaf = forward_ad.make_dual(x.detach().clone().requires_grad_(), probe(x))
            tangent: Any = forward_ad.unpack_dual(torch.autograd.grad(f(leaf).square().sum(), leaf)[0]).tangent
            return torch.zeros_like(x) if tangent is None else tangent

    return run


class _Model(torch.nn.Module):
    def __init__(self, f: Function) -> None:
        super().__init__()
        self.f, self.x = f, torch.nn.Parameter(torch.zeros(()))

    def forward(self) -> torch.Tensor:
        return self.f(self.x)


TRANSFORMS: dict[str, Callable[[Function], Any]] = {
    "grad": lambda f: grad(scalar(f)),
    "vjp": _vjp,
    "jvp": lambda f: lambda x: torch.stack(jvp(f, (x,), (probe(x),))).prod(0),
    "jacrev": lambda f: lambda x: _contracted(jacrev(f, chunk_size=1)(x), x),
    "jacfwd": lambda f: lambda x: _contracted(jacfwd(f, randomness="different")(x), x),
    "hessian": lambda f: lambda x: _contracted(hessian(scalar(f))(x), x),
    "vmap": lambda f: lambda x: vmap(f, in_dims=1, out_dims=-1, chunk_size=1)(torch.stack([x, x + 0.1], 1)).sum(-1),
    "scaled": lambda f: lambda x: vmap(lambda z: f(x) * z, randomness="same")(torch.arange(2.0, dtype=x.dtype)).sum(0),
    "linearize": lambda f: lambda x: linearize(f, x)[1](probe(x)),
    "graph": _with_graph,
    "dual": _dual,
    "dual_backward": _dual_backward,
    "functional.jvp": lambda f: lambda x: functional.jvp(f, x, probe(x), create_graph=True)[1],
    "functional.jacobian": lambda f: lambda x: _contracted(functional.jacobian(f, x, create_graph=True), x),
    "functional.hessian": lambda f: lambda x: _contracted(functional.hessian(scalar(f), x), x),
    "functional.hvp": lambda f: lambda x: functional.hvp(scalar(f), x, probe(x))[1],
    "functional.vhp": lambda f: lambda x: functional.vhp(scalar(f), x, probe(x))[1],
    "vectorize": lambda f: lambda x: _contracted(functional.jacobian(f, x, vectorize=True), x),
    "forward-mode": lambda f: lambda x: _contracted(functional.jacobian(f, x, vectorize=True, strategy="forward-mode"), x),
    "checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
    "call": lambda f: lambda x: functional_call(_Model(f), {"x": x}),
    "compile": lambda f: torch.compile(f, backend="aot_eager"),
}


def composed(names: str, f: Function) -> Function:
    """The transforms, of which the first is the outermost, applied to f."""
    for name in reversed(names.split(" ")):
        f = TRANSFORMS[name](f)
    return f
