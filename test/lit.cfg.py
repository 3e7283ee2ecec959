"""lit configuration: `lit test` from the repository root, installed or not; `--param processes=1` starts every tool as a process."""

# lit defines `config` and `lit_config` before it runs this file.
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false

import importlib.util
import os
import shutil
import sys

import lit.formats

here = os.path.dirname(os.path.abspath(__file__))
repository = os.path.dirname(here)
python = lit_config.params.get("python", sys.executable)
search = os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", "")])

config.name = "attn-mlir"
# lit's own shell knows `not`, pipes and redirections, on every system.
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".py"]
config.excludes = ["lit.cfg.py", "lit_server.py", "lit_client.py", "conftest.py", "Inputs", "unit"]
config.test_source_root = here
config.test_exec_root = lit_config.params.get("exec_root", os.path.join(repository, "build", "test"))

sys.path.insert(0, here)
import lit_server  # noqa: E402  beside this file

environment = config.environment
environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.join(repository, "python"), os.environ.get("PYTHONPATH")]))
# Several small processes run at once; their own thread pools would only get in each other's way.
environment["OMP_NUM_THREADS"] = environment["OPENBLAS_NUM_THREADS"] = "1"
for variable in ("HOME", "TILELANG_CACHE_DIR", "CUDA_HOME"):
    if variable in os.environ:
        environment[variable] = os.environ[variable]
served = None if lit_config.params.get("processes") else lit_server.start(python, environment)

filecheck = os.environ.get("FILECHECK") or shutil.which("FileCheck", path=search) or shutil.which("filecheck", path=search) or ""
if not filecheck:
    lit_config.fatal("FileCheck not found: install LLVM's, or `pip install filecheck`")
if filecheck.endswith("FileCheck"):
    filecheck += " --enable-var-scope --dump-input=fail"
elif served:
    filecheck = f"{served}.check filecheck"


def tool(name: str) -> str:
    return f"{served} {name}" if served else f"{python} -m attn_mlir.tools.{name}"


config.substitutions += [
    ("%PYTHON", python),
    ("%inputs", os.path.join(here, "Inputs")),
    (r"(?<![\w/.-])attn-opt(?![\w.-])", tool("attn_opt")),
    (r"(?<![\w/.-])attn-fmha(?![\w.-])", tool("attn_fmha")),
    (r"(?<![\w/.-])attn-generate(?![\w.-])", tool("attn_generate")),
    (r"(?<![\w/.-])attn-run(?![\w.-])", tool("attn_run")),
    (r"(?<![\w/.-])attn-translate(?![\w.-])", tool("attn_translate")),
    (r"(?<![\w/.-])attn-tune(?![\w.-])", tool("attn_tune")),
    (r"\bFileCheck\b", filecheck),
]
# What tests may ask for by REQUIRES.
for module in ("torch", "tilelang"):
    if importlib.util.find_spec(module):
        config.available_features.add(module)
for program in ("nvcc", "clang++", "g++"):
    if shutil.which(program, path=search):
        config.available_features.add(program)
