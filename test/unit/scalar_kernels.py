"""A kernel of elements that uses every scalar op, as text."""

_UNARY = (
    "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt cbrt absf sin cos tan tanh sinh cosh asin acos atan erf erfc floor ceil trunc round "
    "roundeven"
)
_BINARY = (
    "math.powf math.atan2 math.copysign arith.maximumf arith.minimumf arith.maxnumf arith.minnumf arith.remf arith.addf arith.subf "
    "arith.mulf arith.divf"
)
_INTEGER = "addi subi muli divsi remsi floordivsi ceildivsi minsi maxsi andi ori xori"
_FLOAT_ORDERS = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true"
_ORDERS = "eq ne slt sle sgt sge ult ule ugt uge"
_OTHERS = """
%fma = math.fma %x, %y, %x : f32
%neg = arith.negf %x : f32
%xi = arith.fptosi %x : f32 to i32
%left = arith.shli %xi, %two : i32
%right = arith.shrsi %left, %two : i32
%shifted = arith.sitofp %right : i32 to f32
%whole = math.fpowi %x, %two : f32, i32
%short = arith.truncf %x : f32 to f16
%wide = arith.extf %short : f16 to f32
%flag = memref.load %flags[%i] : memref<?xi1, strided<[?]>>
%flag_i = arith.extui %flag : i1 to i32
%flag_f = arith.uitofp %flag_i : i32 to f32
%byte = memref.load %bytes[%i] : memref<?xi8, strided<[?]>>
%byte_i = arith.index_cast %byte : i8 to index
%byte_j = arith.index_cast %byte_i : index to i64
%byte_f = arith.sitofp %byte_j : i64 to f32
%both = arith.andi %c_oeq, %d_eq : i1
%either = arith.ori %both, %c_olt : i1
%not = arith.xori %either, %true : i1
%chosen = arith.select %not, %x, %y : f32
""".strip().splitlines()
_TEXT = """
func.func @ops(%values: memref<?x?x?xf32, strided<[?, ?, ?]>>, %flags: memref<?xi1, strided<[?]>>, %bytes: memref<?xi8, strided<[?]>>,
               %y: f32, %k: index, %out: memref<?x?x?xf32, strided<[?, ?, ?]>>)
    attributes {tile.kernel = {block_kv = 1 : i64, block_q = 128 : i64, grid = "elements", over = 0 : i64, score = f32, outputs = ["store"],
                               disjoint = [[]], serial = false}} {
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %c1 = arith.constant 1 : index
  %two = arith.constant 2 : i32
  %true = arith.constant true
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %head = "tile.program_id"() {axis = 1 : i64} : () -> index
  %batch = "tile.program_id"() {axis = 2 : i64} : () -> index
  %n = memref.dim %values, %c2 : memref<?x?x?xf32, strided<[?, ?, ?]>>
  %first = arith.muli %block, %c128 : index
  %rest = arith.subi %n, %first : index
  %count = arith.minsi %rest, %c128 : index
  %last = arith.subi %n, %c1 : index
  %tile = "tile.map"(%c128) ({
    ^bb0(%r: index):
      %position = arith.addi %first, %r : index
      %i = arith.minsi %position, %last : index
      %x = memref.load %values[%batch, %head, %i] : memref<?x?x?xf32, strided<[?, ?, ?]>>
      BODY
      "tile.yield"(RESULT) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<128xf32>
  "tile.store"(%tile, %out, %batch, %head, %first, %count)
      : (tensor<128xf32>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index, index) -> ()
  return
}
"""


def every_op() -> str:
    """The kernel; it adds up what the ops give."""
    lines = [f"%u_{op} = math.{op} %x : f32" for op in _UNARY.split()]
    results = [f"%u_{op}" for op in _UNARY.split()]
    for number, op in enumerate(_BINARY.split()):
        lines.append(f"%b_{number} = {op} %x, %y : f32")
        results.append(f"%b_{number}")
    for op in _INTEGER.split():
        lines += [
            f"%i_{op} = arith.{op} %i, %k : index",
            f"%j_{op} = arith.index_cast %i_{op} : index to i64",
            f"%f_{op} = arith.sitofp %j_{op} : i64 to f32",
        ]
        results.append(f"%f_{op}")
    for order in _FLOAT_ORDERS.split():
        lines += [f"%c_{order} = arith.cmpf {order}, %x, %y : f32", f"%s_{order} = arith.select %c_{order}, %x, %y : f32"]
        results.append(f"%s_{order}")
    for order in _ORDERS.split():
        lines += [f"%d_{order} = arith.cmpi {order}, %i, %k : index", f"%t_{order} = arith.select %d_{order}, %x, %y : f32"]
        results.append(f"%t_{order}")
    for kind in ("isnan", "isinf", "isfinite"):
        lines += [f"%k_{kind} = math.{kind} %x : f32", f"%l_{kind} = arith.select %k_{kind}, %x, %y : f32"]
        results.append(f"%l_{kind}")
    lines += _OTHERS
    results += ["%fma", "%neg", "%shifted", "%whole", "%wide", "%flag_f", "%byte_f", "%chosen"]
    total = results[0]
    for number, result in enumerate(results[1:]):
        lines.append(f"%sum_{number} = arith.addf {total}, {result} : f32")
        total = f"%sum_{number}"
    return _TEXT.replace("BODY", "\n      ".join(lines)).replace("RESULT", total)
