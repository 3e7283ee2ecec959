"""The arguments of a kernel as parameters of its C++ function, made when they are first used."""

from collections.abc import Callable

from attn_mlir.backends.gpu.kernel import RAGGED_ROWS, KernelParameter
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.scalars import Names
from attn_mlir.dialects.regions import maker
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.frame import argument_names

_TAKEN = (
    "row column lane warpgroup h i j c e n s a b block head batch shared memory tile counter blocks semaphores pairs programs program "
    "partial_sums round first second inside width pair drawn kv count kind send found found_kv found_count begin_of end_of partial_blocks "
    "found_blocks key_blocks ends last leaving more message next_program release old_block old_head old_batch staging place turn "
    "final at_row at_column at packed factor step stage parity columns query chunk to own warp barriers store_row tile_row add_row "
    "add_chunk odd_row key key0 present exchange first_column column_float left kept part together same_program attn "
    "chunks number rows full state leader turned_row turned_column diagonal of_diagonal own_key own_thread only_place first_key "
    "first_query of_all to_place pages places asked iteration semaphore atom raw widener from j0 exchanges"
).split()
"""Names that printed code uses for itself: an argument of one of these names gets a number."""


class Arguments:
    """Parameters of a kernel function, by the kernel's arguments.

    `names` are the C++ names of the arguments: a tensor's is that of its pointer, sizes are `<name>_n<dim>`, strides `<name>_s<dim>`.
    """

    def __init__(self, kernel: ir.Operation) -> None:
        block = kernel.regions[0].blocks[0]
        self.values = list(block.arguments)
        names = Names(_TAKEN)
        self.names = [names.fresh(name if name[:1].isalpha() else f"arg_{name}") for name in argument_names(block)]
        self._parameters: dict[str, tuple[KernelParameter, str]] = {}
        self.own: dict[int, str] = {}
        """Arguments that a kernel makes itself: variables, by the arguments' numbers."""
        self._packs: dict[ir.Value, tuple[ir.Value, int]] = {}
        facts = ir.DictAttr(kernel.attributes["tile.kernel"]) if "tile.kernel" in kernel.attributes else {}
        self._ragged = frozenset(ir.DenseI64ArrayAttr(facts["ragged"])) if "ragged" in facts else frozenset[int]()

    def number(self, value: ir.Value) -> int:
        """Which argument a value is, or is a transposed view of. Raises UnsupportedError for other values."""
        value, _ = _viewed(value)
        for number, argument in enumerate(self.values):
            if argument == value:
                return number
        raise UnsupportedError(f"memory is read and written through the kernel's arguments, not through {value}")

    def pack(self, value: ir.Value, source: ir.Value, heads: int) -> None:
        """Takes a value as that of an argument [B, H, S, ...] whose rows are those of so many heads at each position."""
        self._packs[value] = source, heads

    def pointer(self, value: ir.Value, align: int = 0) -> str:
        """The address of a tensor, `const T *`, or `T *` of an output. `align`: see `KernelParameter`; once asked for, it holds for all."""
        number = self.number(value)
        name, type_ = self.names[number], c_type(ir.MemRefType(value.type).element_type)
        if align:
            self._parameters[name] = (KernelParameter("pointer", number, align=align), f"{type_} *__restrict__ {name}")
        return self._add(name, KernelParameter("pointer", number), f"{type_} *__restrict__ {name}")

    def size(self, value: ir.Value, dim: int) -> str:
        """Its size along `dim`, an int."""
        if value in self._packs:
            source, heads = self._packs[value]
            return f"({self.size(source, dim)} {'/' if dim == 1 else '*'} {heads})" if dim in (1, 2) else self.size(source, dim)
        number, dim = self.number(value), _viewed(value, dim)[1]
        name = f"{self.names[number]}_n{dim}"
        return self._add(name, KernelParameter("size", number, dim), f"int {name}")

    def stride(self, value: ir.Value, dim: int) -> str:
        """Its stride along `dim` in elements, a long long."""
        number, dim = self.number(value), _viewed(value, dim)[1]
        name = f"{self.names[number]}_s{dim}"
        return self._add(name, KernelParameter("stride", number, dim, "long long"), f"long long {name}")

    def scalar(self, value: ir.Value, type_: str = "") -> str:
        """A number, as a C++ `type_`; without one, floats as they are and indices as int."""
        number = self.number(value)
        type_ = type_ or ("int" if isinstance(value.type, ir.IndexType) else c_type(value.type))
        return self._add(self.names[number], KernelParameter("scalar", number, -1, type_), f"{type_} {self.names[number]}")

    def descriptor(self, value: ir.Value, columns: int, rows: int, swizzle: int = 128) -> str:
        """The address of a TMA descriptor of a 4-D tensor, whose boxes have so many columns and rows."""
        if value in self._packs:
            source, heads = self._packs[value]
            number = self.number(source)
            name = f"{self.names[number]}_map_{columns}x{rows}_of_{heads}"
            parameter = KernelParameter("packed", number, heads, "", (columns, rows), swizzle)
            self._add(name, parameter, f"const __grid_constant__ CUtensorMap {name}")
            return f"&{name}"
        number = self.number(value)
        name = f"{self.names[number]}_map_{columns}x{rows}"
        kind = "ragged" if number in self._ragged else "descriptor"
        parameter = KernelParameter(kind, number, -1, "", (columns, rows), swizzle)
        self._add(name, parameter, f"const __grid_constant__ CUtensorMap {name}")
        return f"&{name}"

    def window(self, value: ir.Value, dim: int, columns: int, rows: int) -> str:
        """The TMA descriptor of a tensor, whose boxes have so many columns of the last dimension and rows of `dim`, or zeros.

        `dim` is negative. See `KernelParameter`, "window".
        """
        number = self.number(value)
        name = f"{self.names[number]}_window_{columns}x{rows}_{-dim}"
        parameter = KernelParameter("window", number, dim, "", (columns, rows))
        return self._add(name, parameter, f"const __grid_constant__ CUtensorMap {name}")

    def copied_at(self, value: ir.Value, row: str, head: str, batch: str) -> str:
        """Where a TMA copy of a tensor is behind its column: row, head and batch, and of a ragged view what leads back to the tensor.

        Where rows are those of several heads: head, position, batch.
        """
        if value in self._packs:
            heads = self._packs[value][1]
            return f"({head}) * {heads}, ({row}) / {heads}, {batch}"
        number = self.number(value)
        if number not in self._ragged:
            return f"{row}, {head}, {batch}"
        name = f"{self.names[number]}_rows"
        # Counted from the last dimension: sums in slots have one dimension more.
        rows = self._add(name, KernelParameter("size", number, -2), f"int {name}")
        return f"{row} + ({RAGGED_ROWS} - {rows}), {head}, {batch}, {RAGGED_ROWS}"

    def counter(self, words: int = 1) -> str:
        """The address of int32s that are zero before and after the kernel: one, or as many as the first who asks says."""
        parameter = KernelParameter("counter", box=(words, 0) if words > 1 else (0, 0))
        return self._add("counter", parameter, "int *__restrict__ counter")

    def semaphores(self) -> str:
        """The address of the semaphores, int32 zeros after the kernel's own arguments: as many as its schedule says."""
        return self._add("semaphores", KernelParameter("pointer", len(self.values)), "int *__restrict__ semaphores")

    def partial_sums(self) -> str:
        """The address of memory for partial sums, after the kernel's own arguments: as many int32 words as its schedule says."""
        return self._add("partial_sums", KernelParameter("pointer", len(self.values)), "float4 *__restrict__ partial_sums")

    def blocks(self) -> str:
        """How many blocks of rows the grid has."""
        return self._add("blocks", KernelParameter("blocks"), "int blocks")

    def element(self, value: ir.Value, indices: list[str], align: int = 0) -> str:
        """An element in global memory; `align` as of `pointer`, by which the last stride is 1."""
        if value in self._packs:
            source, heads = self._packs[value]
            batch, head, row, *column = indices
            indices, value = [batch, f"({head} * {heads} + {row} % {heads})", f"({row} / {heads})", *column], source
        offsets = [f"{index} * {self.stride(value, dim)}" for dim, index in enumerate(indices[:-1] if align else indices)]
        offsets += indices[-1:] if align else []
        return f"{self.pointer(value, align)}[{' + '.join(offsets) or '0'}]"

    def structure(self, name: str, type_: str) -> str:
        """A structure, which is the last argument, after the kernel's own, as bytes."""
        return self._add(name, KernelParameter("bytes", len(self.values)), f"const __grid_constant__ {type_} {name}")

    def own_declarations(self, stride: Callable[[str, int], str]) -> list[str]:
        """Declarations of what is read of `own` arguments; `stride` tells those of a variable. Raises UnsupportedError for their sizes."""
        lines = []
        for name, (parameter, _) in self._parameters.items():
            variable = self.own.get(parameter.argument)
            if variable is None:
                continue
            if parameter.kind not in ("pointer", "stride"):
                raise UnsupportedError(f"kernels that make {variable} themselves do not know its {parameter.kind}")
            is_pointer = parameter.kind == "pointer"
            lines.append(f"auto &{name} = {variable};" if is_pointer else f"const long long {name} = {stride(variable, parameter.dim)};")
        return lines

    def _add(self, name: str, parameter: KernelParameter, declaration: str) -> str:
        self._parameters.setdefault(name, (parameter, declaration))
        return name

    def declarations(self) -> list[str]:
        """Those of the function's parameters, descriptors first."""
        return [declaration for _, declaration in self._sorted()]

    def parameters(self) -> tuple[KernelParameter, ...]:
        """How the driver makes them, in the same order."""
        return tuple(parameter for parameter, _ in self._sorted())

    def _sorted(self) -> list[tuple[KernelParameter, str]]:
        order = ("descriptor", "packed", "ragged", "window", "pointer", "counter", "size", "stride", "scalar", "blocks", "bytes")
        taken = [item for item in self._parameters.values() if item[0].argument not in self.own]
        return sorted(taken, key=lambda item: (order.index(item[0].kind), item[0].argument, item[0].dim))


def _viewed(value: ir.Value, dim: int = 0) -> tuple[ir.Value, int]:
    """The memory that a value is or shows transposed, and which of its dimensions `dim` is."""
    view = maker(value, "memref.transpose")
    if view is None:
        return value, dim
    return view.operands[0], ir.AffineDimExpr(view.attributes["permutation"].value.results[dim]).position
