"""What the graph of the user's functions computes from captured values alone, such as `rates.exp()`, is computed by torch beforehand."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from attn_mlir.api.graph_checks import function_of
from attn_mlir.api.graph_indices import read_at
from attn_mlir.api.graph_modes import detached, without_gradients


def hoisted(graph: Graph, inputs: Mapping[Node, Any], is_symbol: Callable[[Node], bool]) -> dict[Node, Tensor]:
    """The tensors made without symbols that other nodes take, as operations of the outer graph, so that they have gradients.

    `inputs` are the values of the graph's inputs. Integers stay in the graph: they are traced with the functions.
    """
    free = _free_of_symbols(graph, is_symbol)
    known: dict[Node, Any] = {}
    constant = without_gradients(graph)

    def value_of(node: Node) -> Any:
        if node not in known:
            value = _evaluate(node, inputs, value_of)
            known[node] = detached(value) if node in constant and node.op != "placeholder" else value
        return known[node]

    wanted = [node for node in free if any(user not in free for user in node.users)]
    return {node: value for node in wanted if isinstance(value := value_of(node), Tensor)}


def _free_of_symbols(graph: Graph, is_symbol: Callable[[Node], bool]) -> dict[Node, None]:
    """The nodes made of inputs and constants alone, in order; what was a Python number (`compiled.as_tensor`) is none of them."""
    free: dict[Node, None] = {}
    for node in graph.nodes:
        number = node.target is torch.full and not node.all_input_nodes and node.args[0] == ()
        called = node.op in ("call_function", "call_method") and not number and not is_symbol(node)
        if called and all(_is_given(operand) or operand in free for operand in node.all_input_nodes):
            free[node] = None
    return free


def _is_given(node: Node) -> bool:
    """Whether a node is an input, or a graph that torch has for a function, as that of a torch.autograd.Function."""
    return node.op == "placeholder" or (node.op == "get_attr" and isinstance(attribute(node), torch.fx.GraphModule))


def attribute(node: Node) -> Any:
    """What a get_attr node reads."""
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def as_operand(value: Any) -> Any:
    """An input of the graph as operators take it: symbolic floats, which they do not, become tensors."""
    return torch.scalar_tensor(value, dtype=torch.float64, device="cpu") if isinstance(value, torch.SymFloat) else value  # type: ignore[arg-type]


def _evaluate(node: Node, inputs: Mapping[Node, Any], value_of: Callable[[Node], Any]) -> Any:
    """A node's value. Symbolic floats are tensors, so that what is computed from them is one, too."""
    if node.op == "placeholder":
        return as_operand(inputs[node])
    if node.op == "get_attr":
        return attribute(node)
    args: Any = map_arg(node.args, value_of)
    kwargs: Any = map_arg(node.kwargs, value_of)
    if node.target is operator.getitem and isinstance(args[0], Tensor):
        return read_at(*args)
    if node.op == "call_function":
        return function_of(node)(*args, **kwargs)
    if node.target == "item":
        return _number(args[0])
    return getattr(args[0], str(node.target))(*args[1:], **kwargs)


def _number(x: Tensor) -> Tensor:
    """The only element of a tensor, without its gradient; torch knows an input that stands for a number only as it is."""
    x = x.detach() if x.requires_grad else x
    return x.reshape(()) if x.dim() else x
