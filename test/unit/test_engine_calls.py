"""Calls of attentions and engines go past torch's `Module.__call__` only where that has nothing to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules import module as torch_module

import attn_mlir
import engine_programs as ep


@pytest.fixture(params=["Attention", "AttentionEngine", "LinearAttention", "LinearAttentionEngine"])
def called(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A module and what it is called with."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 16).unbind(0)
    if request.param == "Attention":
        return attn_mlir.Attention(mask_mod=attn_mlir.masks.causal()), [q, k, v]
    if request.param == "LinearAttention":
        return attn_mlir.LinearAttention(), [q, k, v, -torch.rand(1, 2, 5)]
    if request.param == "LinearAttentionEngine":
        return attn_mlir.LinearAttentionEngine(ep.meta(2, 2)), [q, k, v, -torch.rand(1, 2, 5)]
    return attn_mlir.AttentionEngine(ep.meta(2, 2), mask_mod=ep.causal, online_func=attn_mlir.OnlineSoftmax()), [
        x.transpose(1, 2) for x in (q, k, v)
    ]


Registration = Callable[[torch.nn.Module, list[str]], Any]
_FORWARD: dict[str, Registration] = {
    "forward": lambda m, seen: m.register_forward_hook(lambda *_: seen.append("forward")),
    "pre": lambda m, seen: m.register_forward_pre_hook(lambda *_: seen.append("pre")),
    "keywords": lambda m, seen: m.register_forward_hook(lambda *_: seen.append("keywords"), with_kwargs=True),
    "always": lambda m, seen: m.register_forward_hook(lambda *_: seen.append("always"), always_call=True),
    "global forward": lambda m, seen: torch_module.register_module_forward_hook(lambda *_: seen.append("global forward")),
    "global pre": lambda m, seen: torch_module.register_module_forward_pre_hook(lambda *_: seen.append("global pre")),
}
_BACKWARD: dict[str, Registration] = {
    "backward": lambda m, seen: m.register_full_backward_hook(lambda *_: seen.append("backward")),
    "backward pre": lambda m, seen: m.register_full_backward_pre_hook(lambda *_: seen.append("backward pre")),
    "global backward": lambda m, seen: torch_module.register_module_full_backward_hook(lambda *_: seen.append("global backward")),
    "global backward pre": lambda m, seen: torch_module.register_module_full_backward_pre_hook(
        lambda *_: seen.append("global backward pre")
    ),
}


@pytest.mark.parametrize("kind", [*_FORWARD, *_BACKWARD])
def test_hooks_of_all_kinds_run(called: tuple[torch.nn.Module, list[torch.Tensor]], kind: str) -> None:
    engine, inputs = called
    inputs = [x.clone().requires_grad_() for x in inputs]
    seen: list[str] = []
    handle = (_FORWARD | _BACKWARD)[kind](engine, seen)
    try:
        engine(*inputs).sum().backward()
    finally:
        handle.remove()
    assert seen == [kind]
    engine(*inputs).sum().backward()
    assert seen == [kind]


def plus_one(module: Any, given: Any, output: Any) -> Any:
    return output + 1


class Model(torch.nn.Module):
    """A model that holds the module, as models do."""

    def __init__(self, engine: torch.nn.Module) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.engine(*inputs) * 2


def test_compiled_whole_with_and_without_hooks(called: tuple[torch.nn.Module, list[torch.Tensor]]) -> None:
    engine, inputs = called
    expected = engine(*inputs)
    model = torch.compile(Model(engine), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(model(*inputs), expected * 2)
    handle = engine.register_forward_hook(plus_one)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(Model(engine), fullgraph=True, backend="aot_eager")(*inputs), (expected + 1) * 2)
    handle.remove()


def test_modules_that_compile_themselves_do(called: tuple[torch.nn.Module, list[torch.Tensor]]) -> None:
    engine, inputs = called
    expected, graphs = engine(*inputs), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    engine.compile(fullgraph=True, backend=backend)
    torch.testing.assert_close(engine(*inputs), expected)
    assert len(graphs) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_exported(called: tuple[torch.nn.Module, list[torch.Tensor]], strict: bool) -> None:
    engine, inputs = called
    exported = torch.export.export(Model(engine), tuple(inputs), strict=strict)
    torch.testing.assert_close(exported.module()(*inputs), engine(*inputs) * 2)
    stacks = [node.meta.get("nn_module_stack", {}) for node in exported.graph.nodes if "attn_mlir" in str(node.target)]
    assert stacks and all("engine" in str([path for path, _ in stack.values()]) for stack in stacks)


class Leaves(torch.fx.Tracer):
    """Records calls of the project's modules as they are."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return type(m).__module__.startswith("attn_mlir")


def test_tracers_of_modules_see_the_call(called: tuple[torch.nn.Module, list[torch.Tensor]]) -> None:
    class Fixed(torch.nn.Module):
        def __init__(self, engine: torch.nn.Module, count: int) -> None:
            super().__init__()
            self.engine, self.count = engine, count

        def forward(self, a: Any, b: Any, c: Any, d: Any = None) -> Any:
            return self.engine(*(a, b, c, d)[: self.count])

    engine, inputs = called
    graph = Leaves().trace(Fixed(engine, len(inputs)))
    assert [node.target for node in graph.nodes if node.op == "call_module"] == ["engine"]
