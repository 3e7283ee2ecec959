"""Runs attn-opt in this process on many files; prints one JSON line for each. A crash shows as a missing line."""

import contextlib
import io
import json
import resource
import sys

from attn_mlir.tools.attn_opt import main


def run(arguments: list[str], path: str) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main([path, *arguments])
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    return {"path": path, "code": code, "stderr": err.getvalue()}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    for line in sys.stdin:
        print(json.dumps(run(sys.argv[1:], line.rstrip("\n"))), flush=True)
