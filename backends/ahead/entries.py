"""The functions of a library in C++: those that its header declares, and the same as symbols of tvm-ffi."""

from collections.abc import Sequence

from attn_mlir.backends.ahead.request import CParameter, Request, declaration, functions, gradients, inputs, results

_EXTERN = 'extern "C" __attribute__((visibility("default")))'


def entries(request: Request) -> str:
    """All functions."""
    made = [_function(request, function, parameters) for function, parameters in functions(request).items()]
    made.append(f"{_EXTERN} const char *{request.name}_last_error(void) {{ return attn::message(); }}")
    made += [_foreign(request, function, parameters) for function, parameters in foreign(request).items()]
    return "\n".join(made) + "\n"


def foreign(request: Request) -> dict[str, list[CParameter]]:
    """The functions that are symbols of tvm-ffi: their arguments are those in C without the workspace, in the same order."""
    found = functions(request)
    made = {"forward": found["forward"][:-4]}
    if "training_forward" in found:
        made["saved_size"] = inputs(request)
    made |= {function: found[function][:-4] for function in ("training_forward", "backward") if function in found}
    return {name: [p for p in parameters if p.name != "saved_size"] for name, parameters in made.items()}


def _function(request: Request, function: str, parameters: Sequence[CParameter]) -> str:
    workspace = "{workspace, workspace_size, stream, threads}"
    given = ", ".join(f"attn::Given({_value(request, i)})" for i in range(len(request.names)))
    rows = ", ".join(p.name for p in results(request))
    lines = [f"    const attn::Given given[] = {{{given}}};"]
    gradients_of = f"    const DLTensor *grads[] = {{{', '.join(p.name for p in results(request, 'd_'))}}};"
    wanted = f"    const DLTensor *made[] = {{{', '.join(p.name for p in gradients(request))}}};"
    linear = "" if request.linear is None else "linear_"
    match function:
        case "sizes":
            call = "linear_sizes(library, given, sizes)" if linear else "sizes_of(library, given, sizes)"
        case "forward":
            lines.append(f"    const DLTensor *results[] = {{{rows}}};")
            call = f"{linear}forward(library, given, results, {workspace})"
        case "training_forward":
            lines.append(f"    const DLTensor *results[] = {{{rows}}};")
            call = f"training(library, given, results, saved, saved_size, {workspace})"
        case "backward" if linear:
            lines += [gradients_of, wanted]
            call = f"linear_backward(library, given, grads, made, {workspace})"
        case _:
            lines += [f"    const DLTensor *results[] = {{{rows}}};", gradients_of, wanted]
            call = f"backward(library, given, results, saved, saved_size, grads, made, {workspace})"
    head = declaration(f"{request.name}_{function}", parameters)
    return "\n".join(
        [f"{_EXTERN} {head} {{", "  return attn::guarded([&]() -> int32_t {", *lines, f"    return attn::{call};", "  });", "}"]
    )


def _value(request: Request, i: int) -> str:
    return f"int64_t({request.names[i]})" if i >= 3 and request.captures[i - 3].kind == "int" else request.names[i]


def _foreign(request: Request, function: str, parameters: Sequence[CParameter]) -> str:
    """A function of the form that tvm-ffi calls; a last argument may be the number of threads."""
    kinds, passed, memory = [], [], []
    for i, parameter in enumerate(parameters):
        if parameter.name == "saved":
            kinds.append("attn::ANY_TENSOR")
            passed += [f"a.data({i})", f"a.bytes({i})"]
            memory = [f"  if (!a.fails()) a.is_memory({i});"]
        elif "DLTensor" in parameter.type:
            kinds.append("attn::ANY_TENSOR")
            passed.append(f"a.tensor({i})" if parameter.type.startswith("const") else f"const_cast<DLTensor *>(a.tensor({i}))")
        else:
            kind = "real" if parameter.type == "double " else "integer"
            kinds.append(f"attn::ANY_{kind.upper()}")
            passed.append(f"a.{kind}({i})")
    call = f"{request.name}_{function}({', '.join(passed)}, nullptr, 0, attn::stream_of(a.tensor(0)), a.threads())"
    lines = [f"  int32_t code = a.fails() ? ATTN_MLIR_ERROR_VALUE : {call};"]
    if function == "saved_size":
        lines = [
            "  attn_mlir_sizes sizes{};",
            f"  int32_t code = a.fails() ? ATTN_MLIR_ERROR_VALUE : {request.name}_sizes({', '.join(passed)}, &sizes);",
            "  if (!code) result->type_index = 1, result->integer = int64_t(sizes.saved);",
        ]
    result = "result" if function == "saved_size" else ""
    head = f"{_EXTERN} int __tvm_ffi_{request.name}_{function}(void *, const attn::Any *args, int32_t count, attn::Any *{result}) {{"
    return "\n".join(
        [
            head,
            f"  static const attn::AnyKind kinds[] = {{{', '.join(kinds)}}};",
            f'  attn::AnyArguments a("{request.name}_{function}", args, count, kinds, {len(kinds)});',
            *memory,
            *lines,
            "  return code ? attn::raise(code) : 0;",
            "}",
        ]
    )
