"""What attn-mlir raises. Every message is for the author of an attention variant: what, where, what to do."""


class AttnError(Exception):
    """Base class of everything attn-mlir raises on purpose."""


class ArgumentError(AttnError, ValueError):
    """An argument has the wrong type, shape, dtype, device or value; the message names it."""


class TraceError(AttnError, TypeError):
    """A user's function does something that cannot be traced; the message shows the line."""


class UnsupportedError(AttnError, NotImplementedError):
    """A valid request that this version or backend cannot fulfil; the message says what to do instead."""


class CompileError(AttnError, RuntimeError):
    """A pass or backend rejected the program; the message carries the located diagnostics."""


class PerformanceWarning(UserWarning):
    """A kernel is not made by the best code generator of its device; the message says why, and where."""
