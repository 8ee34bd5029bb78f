"""`python -P -m advisor.trace FOLDER`: answer the request in FOLDER/request.json with FOLDER/reply.json.

Runs the user's code as `python` would run a script in the working directory: that is the first place to import from,
and no module of ours stands in the way of one of the same name.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from advisor.trace.answer import answer
from advisor.trace.messages import Request

PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody waits for the reply of an orphan
    request = msgspec.json.decode((folder / "request.json").read_bytes(), type=Request)
    for name in [name for name in sys.modules if name.partition(".")[0] == "advisor"]:
        del sys.modules[name]
    del sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))
    reply = msgspec.json.encode(answer(request))
    partial = folder / "partial"
    partial.write_bytes(reply)
    partial.rename(folder / "reply.json")
    os._exit(0)  # threads and exit handlers of the user's code are of no use any more


main(Path(sys.argv[1]))
