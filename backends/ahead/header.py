"""The header of a library made ahead of time: the C functions, and what they need of DLPack where that is not installed."""

from attn_mlir.backends.ahead.request import Request, declaration, functions, gradients, inputs, results

DLPACK = """\
#if !defined(DLPACK_DLPACK_H_) && !defined(ATTN_MLIR_OWN_DLPACK) && defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#ifndef DLPACK_DLPACK_H_ /* what is needed of DLPack, with the same layout in memory */
#define DLPACK_DLPACK_H_
#ifdef __cplusplus
enum DLDeviceType : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLROCM = 10,
  kDLROCMHost = 11
#ifdef __cplusplus
};
#else
} DLDeviceType;
#endif
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 } DLDataTypeCode;
typedef struct {
  uint8_t code; /* a DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL: the tensor is dense, the last dimension runs fastest */
  uint64_t byte_offset;
} DLTensor;
#endif
"""
COMMON = """\
#ifndef ATTN_MLIR_AHEAD
#define ATTN_MLIR_AHEAD 1 /* the version of this interface */
/* What functions return; <library>_last_error() tells more. */
enum {
  ATTN_MLIR_OK = 0,
  ATTN_MLIR_ERROR_NULL = 1,      /* an argument, or the memory of a tensor, is NULL */
  ATTN_MLIR_ERROR_DTYPE = 2,     /* a tensor has another element type */
  ATTN_MLIR_ERROR_SHAPE = 3,     /* a tensor has another number of dimensions, or a size that does not fit */
  ATTN_MLIR_ERROR_STRIDES = 4,   /* a tensor has strides, or an address, that kernels cannot read */
  ATTN_MLIR_ERROR_DEVICE = 5,    /* a tensor is on another device */
  ATTN_MLIR_ERROR_VALUE = 6,     /* a number, or an element of a captured tensor, is not allowed */
  ATTN_MLIR_ERROR_WORKSPACE = 7, /* the workspace, or the memory for what is saved, is too small */
  ATTN_MLIR_ERROR_MEMORY = 8,    /* the system gives no memory or no threads */
  ATTN_MLIR_ERROR_PROCESSOR = 9, /* the library was made for another processor or GPU */
  ATTN_MLIR_ERROR_DRIVER = 10    /* there is no driver of the GPU, or a call of it failed */
};
/* The bytes that calls with inputs of these sizes need. */
typedef struct {
  size_t forward_workspace;
  size_t training_workspace;
  size_t saved; /* what training_forward keeps for backward */
  size_t backward_workspace;
} attn_mlir_sizes;
#endif
"""
_NOTES = """\
   Lengths, batch and heads are free: B, Hq a multiple of Hkv, Sq, Skv. Strides are free, but that of the head dimension of q, k, v, o and
   their gradients, and the last one of row outputs, is 1. Results must not overlap other tensors.
   workspace: memory for the call, as many bytes as {name}_sizes says; NULL: the call takes it from the system.
   stream: NULL on a CPU; on a GPU the stream that kernels run on. threads: on how many threads a CPU computes; 0: on all. Results
   do not depend on it. Functions may be called from several threads. They return ATTN_MLIR_OK, or an error before anything is written.
"""
_LINEAR_NOTES = """\
   Lengths, batch and heads are free: B, Hq and Hk, which divide H, T. Strides are free, but the last one of tensors whose number of columns
   is told is 1. Results must not overlap other tensors.
   workspace: memory for the call, as many bytes as {name}_sizes says; NULL: the call takes it from the system.
   stream: NULL on a CPU; on a GPU the stream that kernels run on. threads: on how many threads a CPU computes; 0: on all. Results
   do not depend on it. Functions may be called from several threads. They return ATTN_MLIR_OK, or an error before anything is written.
"""
_LINEAR_ABOUT = {
    "sizes": "The bytes that the other functions need for inputs of these shapes; no data are read, and may be NULL.",
    "forward": "Computes o{rows}.",
    "backward": "Computes the gradients by those of o{rows}; it reads the inputs, and no results.",
}
_ABOUT = {
    "sizes": "The bytes that the other functions need for inputs of these shapes; no data are read, and may be NULL.",
    "forward": "Computes o{rows}.",
    "training_forward": "The same, and keeps in `saved` what the backward pass reads.",
    "backward": "Computes the gradients by those of o{rows}; inputs, results and `saved` are those of training_forward.",
}


def header(request: Request, target: str, version: str) -> str:
    """The text of the header."""
    name = request.name
    guard = f"ATTN_MLIR_{name}_H"  # as it is: the headers of `Near` and `near` may be in one program
    rows = "".join([f" and {output}" for output in request.rows])
    notes, about = (_NOTES, _ABOUT) if request.linear is None else (_LINEAR_NOTES, _LINEAR_ABOUT)
    lines = [
        f"/* {name}: attention compiled ahead of time for {target} by attn-mlir {version}. Generated: make it again instead of editing.",
        notes.format(name=name).rstrip("\n"),
        "*/",
        f"#ifndef {guard}\n#define {guard}\n#include <stddef.h>\n#include <stdint.h>\n",
        DLPACK + COMMON,
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        "/* Arguments and results:",
    ]
    every = [*inputs(request), *results(request), *(gradients(request) if request.wrt else [])]
    width = max(len(parameter.name) for parameter in every)
    lines += [f"   {p.name:<{width}}  {'' if 'DLTensor' in p.type else f'{p.type.strip()}: '}{p.about}" for p in every]
    lines.append("*/")
    for function, parameters in functions(request).items():
        lines += [f"/* {about[function].format(rows=rows)} */", f"{declaration(f'{name}_{function}', parameters)};\n"]
    lines += ["/* What went wrong in the last call of this thread that returned an error. */", f"const char *{name}_last_error(void);\n"]
    lines += ["#ifdef __cplusplus\n}\n#endif", "#endif"]
    return "\n".join(lines) + "\n"
