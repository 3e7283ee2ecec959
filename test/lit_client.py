"""One call of a tool through lit_server.py: PLACE TOOL ARGUMENTS. Imports nothing that takes long to import."""

import _socket as sockets
import os
import sys

CODE = 4
"""Bytes of an answer: an exit code, or the negative number of a signal."""


def call(place: str, words: list[str]) -> int:
    """Hands arguments, environment, folder and files to the server at `place`, and ends as the tool does."""
    variables = [f"{name}={value}" for name, value in os.environ.items()]
    request = "\0".join([str(len(words)), os.getcwd(), *words, *variables]).encode(errors="surrogateescape")
    server = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    server.connect(place)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([len(request).to_bytes(CODE, "big")], [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, files)])
    while request:
        request = request[server.send(request) :]
    answer = server.recv(CODE)
    if len(answer) < CODE:
        sys.stderr.write(f"{words[0]}: the process that ran it is gone\n")
        return 70
    code = int.from_bytes(answer, "big", signed=True)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(call(sys.argv[1], sys.argv[2:]))
