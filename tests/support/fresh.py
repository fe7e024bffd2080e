"""Python programs in processes of their own, forked from one that has imported the libraries they share."""

import json
import subprocess
import sys
from collections.abc import Sequence

RUNNER = """
import io, json, os, sys, traceback
import numpy, torch, torchvision

for program in json.load(sys.stdin):
    read, write = os.pipe()
    if not os.fork():
        for stream in (1, 2):
            os.dup2(write, stream)
        status = 1
        try:
            os.chdir(program["folder"])
            sys.path[:0] = program["path"]
            exec(compile(program["code"], "<program>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.wait()[1]), said]), flush=True)
"""


def outcomes(programs: Sequence[tuple[str, str, Sequence[str]]]) -> list[tuple[int, str]]:
    """What becomes of programs that start where torch is imported, and timm and this package are not.

    Args:
        programs: Of each its code, its working folder, and what comes first in its `sys.path`.

    Returns:
        Of each its exit status and what it printed, errors included.
    """
    asked = [{"code": code, "folder": str(folder), "path": list(path)} for code, folder, path in programs]
    argv = [sys.executable, "-Wignore", "-c", RUNNER]
    done = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
