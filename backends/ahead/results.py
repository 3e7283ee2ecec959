"""Results of steps as `attn::Result`s, which compute their shapes of those of operands."""

from attn_mlir.backends.ahead.library import element
from attn_mlir.backends.host import StepResult
from attn_mlir.backends.sizes import text_of


def result_text(result: StepResult, of: str) -> str:
    """A result with elements `of`."""
    sizes = "".join(f" s[{d}] = {text_of(size, 'v[o[{}]].tensor.shape[{}]')};" for d, size in enumerate(result.sizes))
    return f"{{{element(of)}, {len(result.sizes)}, [](const attn::Value *v, const int *o, int64_t *s) {{{sizes} }}}}"
