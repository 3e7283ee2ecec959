"""What AttentionEngine says about mistakes, and about what it does not do yet."""

import re
from typing import Any

import pytest
import torch

import engine_helpers as eh
from attn_mlir import AttentionEngine, CustomIO, Identity, OnlineFunc, OnlineSoftmax, SymbolScalar, Var, create_block_mask, meta_tensor
from attn_mlir.errors import ArgumentError, AttnError, TraceError, UnsupportedError

QKV = eh.inputs(b=1, h=2, sq=16, d=8)
META = eh.meta(*QKV)


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def raises(kind: type[AttnError], text: str) -> Any:
    return pytest.raises(kind, match=re.escape(text))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "triton"}, 'backend=\'triton\' is unknown: use "tl" or "cute", or leave it out'),
        ({"device": "meta"}, "device 'meta': no backend serves it. Use a device of: "),
        ({"device": "tpu-9"}, "device 'tpu-9': no backend serves it. Use a device of: "),
    ],
)
def test_what_is_not_there_yet(options: dict[str, Any], text: str) -> None:
    with raises(UnsupportedError, text):
        AttentionEngine(META, CustomIO(), **options)


def test_a_device_may_be_a_torch_device() -> None:
    mod = AttentionEngine(META, mask_mod=causal, online_func=OnlineSoftmax(), device=torch.device("cpu"))
    eh.check(mod(*QKV), eh.softmax(QKV, eh.scores(QKV), causal))


def test_what_is_accepted_without_effect() -> None:
    mod = AttentionEngine(
        META, CustomIO(), None, causal, online_func=OnlineSoftmax(), device="cpu", backend="tl", tune=False, tune_file="mha_tune.json",
        tune_file_bwd="bwd.json", infer_mask=False, infer_mask_block_M=64, infer_mask_block_N=64,
    )  # fmt: skip
    eh.check(mod(*QKV), eh.softmax(QKV, eh.scores(QKV), causal))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mask_value": "1"}, 'mask_value is "-inf" or "0", got \'1\''),
        ({"custom_fwd_inputs": {"bias": (1,)}}, "custom_fwd_inputs must be a CustomIO, got dict"),
        ({"online_func": OnlineSoftmax}, "online_func is the class OnlineSoftmax; pass an instance: online_func=OnlineSoftmax()"),
        ({"online_func": causal}, "online_func must be an instance of an OnlineFunc, got function"),
        ({"mask_mod": causal, "block_mask": lambda *i: i[0] == 0}, "mask_mod and block_mask are two masks: give one"),
        ({"device": 0}, 'device takes a name such as "cpu" or a torch.device, got int: leave it out'),
        ({"mask_mod": 3}, "mask_mod must be a function, got int"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], text: str) -> None:
    with raises(ArgumentError, text):
        AttentionEngine(META, **options)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        (META[:2], "qkv_meta is a tuple of three"),
        (7, "qkv_meta is a tuple of three"),
        ((*META[:2], "v"), "qkv_meta: v must be a meta_tensor(...), got str"),
        ((meta_tensor(2, 16, 8), *META[1:]), "qkv_meta: q must have 4 dimensions, [batch, heads, length, head dimension], got [2, 16, 8]"),
        ((*META[:2], meta_tensor(1, 2, 16, 8)), "qkv_meta: v has dtype torch.float16 but q has torch.float32"),
        ((meta_tensor(1, 2, 16, 8, dtype=torch.int8), *META[1:]), "qkv_meta: q has dtype torch.int8: use torch.float32"),
        ((*META[:2], meta_tensor(2, 2, 16, 8, dtype=torch.float32)), "qkv_meta: v has batch size 2, but q has 1"),
        ((META[0], META[1], meta_tensor(1, 2, 17, 8, dtype=torch.float32)), "qkv_meta: v has length 17, but k has 16"),
        ((meta_tensor(1, 2, 16, 9, dtype=torch.float32), *META[1:]), "qkv_meta: k has head dimension 8, but q has 9"),
        ((meta_tensor(1, 3, 16, 8, dtype=torch.float32), *META[1:]), "qkv_meta: q has 3 heads, which is no multiple of the 2 heads"),
        (
            (meta_tensor(1, 2, 16, "D", dtype=torch.float32), *META[1:]),
            "the head dimension of q is compiled in and must be a number, got 'D'",
        ),
        ((META[0], META[1], meta_tensor(1, 2, 16, 1025, dtype=torch.float32)), "qkv_meta: v has head dimension 1025; it must be 1 to 1024"),
    ],
)
def test_wrong_meta_tensors(meta: Any, text: str) -> None:
    with raises(ArgumentError, text):
        AttentionEngine(meta, CustomIO())


@pytest.mark.parametrize("size", [-1, 1.5, None, True])
def test_meta_tensor_takes_sizes(size: Any) -> None:
    with raises(ArgumentError, f"meta_tensor takes sizes as numbers or strings, got {size!r}"):
        meta_tensor(1, 2, size, 8)


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ({"x": ("seqlen",)}, 'CustomIO: `x` has the dimension \'seqlen\'; use "batch", "heads"'),
        ({"x": (0,)}, "CustomIO: `x` has the dimension 0; use"),
        ({"x": "heads"}, "CustomIO: the dimensions of `x` are a tuple such as"),
        ({"x": 3}, "CustomIO: the dimensions of `x` are a tuple such as"),
        ({3: (1,)}, "CustomIO takes names of tensors as strings, got 3"),
        ([("x", (1,))], "CustomIO takes a dictionary of names and dimensions, got list"),
    ],
)
def test_wrong_custom_io(dims: Any, text: str) -> None:
    with raises(ArgumentError, text):
        CustomIO(dims)


def tensors(**changes: Any) -> list[Any]:
    named = dict(zip("qkv", QKV, strict=True))
    return [changes.get(name, named[name]) for name in named]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            tensors(q=torch.zeros(1, 17, 2, 8)),
            "q has length 17, but qkv_meta says 16. qkv_meta is in the order [B, H, S, D], the tensors of a call",
        ),
        ([x.transpose(1, 2) for x in QKV], "q has number of heads 16, but qkv_meta says 2"),
        ([x.half() for x in QKV], "q, k and v have dtype torch.float16, but qkv_meta says torch.float32"),
        (tensors(k="k"), "k must be a torch.Tensor, got str"),
        (tensors(k=torch.zeros(1, 16, 2, 9)), "k has head dimension 9 but q has 8"),
        (tensors(v=torch.zeros(16, 2, 8)), "v must have 4 dimensions, [batch, position, head, dim], got shape [16, 2, 8]"),
        (tensors(v=torch.zeros(1, 16, 2, 8, device="meta")), "v is on the meta device and holds no data"),
        ([*QKV, torch.zeros(1)], "the call passes 1 custom inputs after q, k and v, but custom_fwd_inputs names 0: none"),
    ],
)
def test_wrong_tensors_of_a_call(arguments: list[Any], text: str) -> None:
    with raises(ArgumentError, text):
        eh.engine(QKV)(*arguments)


def test_one_name_is_one_size() -> None:
    q, k = meta_tensor("B", "H", "S", 8, dtype=torch.float32), meta_tensor("B", "H", "S", 8, dtype=torch.float32)
    mod = AttentionEngine((q, k, k), CustomIO())
    with raises(ArgumentError, '"S" in qkv_meta is the length of q and the length of k, but these are 16 and 4 in this call'):
        mod(QKV[0], QKV[1][:, :4], QKV[2][:, :4])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "the custom input `bias` must be a torch.Tensor, got float"),
        (torch.zeros(2, 16), "the custom input `bias` has shape [2, 16], but custom_fwd_inputs declares ('heads', 'seq_len', 1)"),
        (torch.zeros(3, 16, 1), 'the custom input `bias` has size 3 in dimension 0, but "heads" is 2 in this call'),
        (torch.zeros(2, 16, 2), "the custom input `bias` has size 2 in dimension 2, but custom_fwd_inputs declares 1"),
        (torch.zeros(2, 16, 1, dtype=torch.complex64), "the custom input `bias` has dtype torch.complex64: use one of float32"),
        (torch.zeros(2, 16, 1, device="meta"), "the custom input `bias` is on meta but q is on cpu: move it there"),
        (torch.zeros(2, 16, 1).to_sparse(), "the custom input `bias` must be a plain strided tensor, got layout torch.sparse_coo"),
    ],
)
def test_wrong_custom_inputs_of_a_call(value: Any, text: str) -> None:
    mod = eh.engine(
        QKV, CustomIO({"bias": ("heads", "seq_len", "1")}), score_mod=lambda s, c, b, h, q_idx, kv_idx: s + c.input_tensors["bias"]
    )
    eh.check(mod(*QKV, torch.zeros(2, 16, 1)), eh.softmax(QKV, eh.scores(QKV)))
    with raises(ArgumentError, text):
        mod(*QKV, value)


def test_block_masks_have_a_size() -> None:
    mod = eh.engine(QKV, block_mask=create_block_mask(causal, 1, None, 16, 20))
    with raises(ArgumentError, "block_mask was made for a length of k of 20, but it is 16 in this call; pass the mask function itself"):
        mod(*QKV)
    with raises(ArgumentError, "this AttentionEngine takes no block mask with the call: make it with extern_block_mask=True"):
        mod(*QKV, block_mask=torch.ones(1, 1, 1, 1))


def test_sizes_are_checked_where_functions_index() -> None:
    table = torch.zeros(10)
    mod = eh.engine(QKV, score_mod=lambda s, _, b, h, q_idx, kv_idx: s + table[kv_idx])
    with raises(ArgumentError, "the captured tensor `table` has size 10 in dimension 0, but `kv_idx` indexes it with 0 to 15"):
        mod(*QKV)


def test_computed_indices_are_checked() -> None:
    custom = CustomIO({"table": (10,), "ids": ("seq_len_kv",)})
    table, ids = custom.input_tensors["table"], custom.input_tensors["ids"]
    values, documents = torch.zeros(10), torch.arange(16, dtype=torch.int32) // 2
    mod = eh.engine(QKV, custom, score_mod=lambda s, _, b, h, q_idx, kv_idx: s + table[kv_idx // 2 + 3] + table[ids[kv_idx]])
    with raises(ArgumentError, "captured tensor 'table' has size 10 in dimension 0, but is read at kv_idx // 2 + 3, which runs over 3..10"):
        mod(*QKV, values, documents)
    mod = eh.engine(QKV, custom, score_mod=lambda s, _, b, h, q_idx, kv_idx: s + table[ids[kv_idx]])
    eh.check(mod(*QKV, values, documents), eh.softmax(QKV, eh.scores(QKV)))
    with raises(ArgumentError, "captured tensor 'table' has size 10 in dimension 0, but is read at ids[kv_idx], which with these elements"):
        mod(*QKV, values, documents + 5)


def test_the_epilogue_is_checked() -> None:
    factors = torch.ones(16)
    online = type(
        "Scaled", (Template,), {"online_fwd_epilogue": staticmethod(lambda o, r, b, h, q_idx: (o * factors[q_idx + 1], {"top": r["m"]}))}
    )
    with raises(ArgumentError, "captured tensor 'factors' has size 16 in dimension 0, but is read at q_idx + 1, which runs over 1..16"):
        eh.engine(QKV, online_func=online())(*QKV)


class Template(OnlineFunc):
    """A softmax of which one method at a time is replaced."""

    def __init__(self) -> None:
        super().__init__({"m": SymbolScalar("m", Var("-inf"))}, {"top": SymbolScalar("top", Var("0"))})

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m = online_rowscales["m"]
        return scores, {"m": m.max(scores.get_reduce("max"))}, 1

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o, {"top": online_rowscales["m"]}


def test_the_template_works() -> None:
    o, rows = eh.engine(QKV, online_func=Template())(*QKV, return_rowscales=True)
    eh.check(o, eh.weighted(QKV, eh.scores(QKV)))
    torch.testing.assert_close(rows["top"], eh.scores(QKV).amax(-1).float(), rtol=1e-5, atol=1e-5)


def branching(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    if s > 0:
        return s, r, 1
    return -s, r, 1


@pytest.mark.parametrize(
    ("method", "function", "text"),
    [
        ("online_fwd", lambda s, r, b, h, q_idx: (s, r), "returned a tuple of 2"),
        ("online_fwd", lambda s, r, b, h, q_idx: None, "returned None"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, {}, 1), "does not return the row states 'm'"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, {**r, "x": 1}, 1), "returns 'x', which online_rowscales in __init__ does not declare"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, [r["m"]], 1), "returned a list for its row states"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, {"m": s}, 1), "the row state 'm' differs from key to key"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, r, s.exp()), "o_scale differs from key to key"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s > 0, r, 1), "must return the weight of each key, but returned a condition"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, r, None), "must return o_scale, but returned None"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s, r["n"], 1), "raised KeyError: 'n'"),
        ("online_fwd", lambda s, r: (s, r, 1), "takes (s, r), but is called with (scores, online_rowscales, b, h, q_idx)"),
        ("online_fwd", branching, "`if` needs one concrete value"),
        ("online_fwd", lambda s, r, b, h, q_idx: (s.get_reduce("median"), r, 1), "get_reduce('median')"),
        ("online_fwd_epilogue", lambda o, r, b, h, q_idx: o, "return o_new, final_rowscales"),
        ("online_fwd_epilogue", lambda o, r, b, h, q_idx: (o, {}), "does not return the row outputs 'top'"),
        ("online_fwd_epilogue", lambda o, r, b, h, q_idx: (o, {"top": 0, "lse": 0}), "returns 'lse', which final_rowscales in __init__"),
        ("online_fwd_epilogue", lambda o, r, b, h, q_idx: (o, {"top": o}), "the row output 'top' differs from column to column of o"),
        (
            "online_fwd_epilogue",
            lambda o, r, b, h, q_idx: (o / o.get_reduce("sum"), {"top": 0}),
            "a reduction over the row, where only one",
        ),
    ],
)
def test_wrong_online_functions(method: str, function: Any, text: str) -> None:
    wrong = type("Wrong", (Template,), {method: staticmethod(function)})()
    with raises(TraceError, text) as caught:
        eh.engine(QKV, online_func=wrong)
    assert "Wrong `" in str(caught.value) and "test_engine_errors.py:" in str(caught.value)


def test_an_online_func_must_be_complete() -> None:
    class Empty(OnlineFunc):
        def __init__(self) -> None:
            super().__init__({}, {})

    class Careless(Identity):
        def __init__(self) -> None:
            pass

    with raises(ArgumentError, "Empty lacks online_fwd(scores, online_rowscales, b, h, q_idx)"):
        eh.engine(QKV, online_func=Empty())
    with raises(ArgumentError, "Careless.__init__ must call super().__init__(online_rowscales, final_rowscales)"):
        eh.engine(QKV, online_func=Careless())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], {}), "OnlineFunc: online_rowscales must be a dictionary of SymbolScalars, got list"),
        (({}, {"lse": 0.0}), "OnlineFunc: final_rowscales must map names to SymbolScalars"),
        (({}, {}, {}), "OnlineFunc takes a CustomIO as third argument, got dict"),
    ],
)
def test_wrong_declarations(arguments: tuple[Any, ...], text: str) -> None:
    with raises(ArgumentError, text):
        OnlineFunc(*arguments)


@pytest.mark.parametrize(
    ("value", "text"), [(Var("m"), "Var('m') is no number"), (Var("nan"), "Var does not take NaN"), (None, "Var(None) is no")]
)
def test_wrong_initial_values(value: Any, text: str) -> None:
    with raises(ArgumentError, text):
        SymbolScalar("m", value)


def test_external_tensors_belong_to_the_engine() -> None:
    class Biased(Template):
        def __init__(self) -> None:
            super().__init__()
            self.external_fwd_tensors = CustomIO({"bias": (1,)})

    with raises(ArgumentError, "Biased takes the tensor `bias` with the dimensions (1,), which is not in custom_fwd_inputs"):
        eh.engine(QKV, online_func=Biased())
    with raises(ArgumentError, "which has the dimensions ('heads',) in custom_fwd_inputs"):
        eh.engine(QKV, CustomIO({"bias": ("heads",)}), Biased())


def test_custom_inputs_where_they_have_no_position() -> None:
    custom = CustomIO({"pad": ("batch", "seq_len_kv"), "w": ("heads",)})
    pad, w = custom.input_tensors["pad"], custom.input_tensors["w"]
    with raises(TraceError, "`w` has the dimension 'heads', along which there is no position"):
        eh.engine(QKV, custom, key_mod=lambda k, c: k * w)
    online = type("Padded", (Template,), {"online_fwd": staticmethod(lambda s, r, b, h, q_idx: (s * pad, r, 1))})()
    with raises(TraceError, "an online function sees a whole block of keys; use this tensor in score_mod"):
        eh.engine(QKV, custom, online)
    with raises(TraceError, "reads the custom input `w`, which the call does not pass"):
        eh.engine(QKV, score_mod=lambda s, _, b, h, q_idx, kv_idx: s + w)
    with raises(TraceError, "the custom input `w` has a value only inside the functions that AttentionEngine takes"):
        _ = w + 1


def test_wrong_score_functions() -> None:
    with raises(TraceError, "takes (s, b), but is called with (score, custom_fwd_inputs, b, h, q_idx, kv_idx)"):
        eh.engine(QKV, score_mod=lambda s, b: s)
    with raises(TraceError, "raised KeyError: 'bias'"):
        eh.engine(QKV, score_mod=lambda s, c, b, h, q_idx, kv_idx: s + c.input_tensors["bias"])
    with raises(TraceError, "must return True or False for each position"):
        eh.engine(QKV, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - kv_idx)
