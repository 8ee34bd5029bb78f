"""Answers the launcher's question where this rank stands: its main thread's stack, and the collectives it is in.

A thread waits for the question and costs nothing until it comes. A rank whose native code keeps Python's lock can't
answer; then a signal has `faulthandler` write the stack to a file.
"""

import faulthandler
import json
import linecache
import os
import pickle
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

STACK_SIGNAL = signal.SIGRTMAX - 5  # nobody's; its default action would end the process
MOST_FRAMES = 60
MOST_COLLECTIVES = 50  # of a group, the latest


def start(address: str, rank: int, stack_file: Path, ours: str) -> None:
    """Connect to the launcher's abstract socket and answer on a thread from now on; leave out frames below `ours`."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{address}")
    file = stack_file.open("w")
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=False)
    main = threading.main_thread().ident
    arguments = (connection, rank, main, ours, file)  # the file must stay open
    threading.Thread(target=_answer, args=arguments, name="advisor-beacon", daemon=True).start()


def _answer(connection: socket.socket, rank: int, main: int, ours: str, _: Any) -> None:
    try:
        while connection.recv(1):
            facts = {"rank": rank, "pid": os.getpid(), "stack": stack(main, ours), "groups": groups()}
            connection.sendall(json.dumps(facts, default=repr).encode() + b"\n")
    except Exception as error:  # the launcher then takes this rank as one that does not answer
        sys.stderr.write(f"advisor: this rank can't say where it stands: {error!r}\n")


def stack(thread: int, ours: str) -> list[dict[str, Any]]:
    """Return the frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread)
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith((ours + os.sep, "<frozen ")):
            line = frame.f_lineno or 0
            text = linecache.getline(code.co_filename, line).strip()
            found.append({"file": code.co_filename, "line": line, "name": code.co_name, "text": text})
        frame = frame.f_back
    return found


def groups() -> dict[str, dict[str, Any]]:
    """Return of each process group its ranks, its latest collectives by number, and the first that is not done."""
    torch = sys.modules.get("torch")
    c10d = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    members = _members()
    found: dict[str, dict[str, Any]] = {}
    for dump in ("_dump_fr_trace", "_dump_nccl_trace"):  # gloo's, NCCL's where torch has it
        read = getattr(c10d, dump, None)
        entries = [] if read is None else pickle.loads(read(includeStackTraces=False)).get("entries", [])
        for entry in entries:
            if entry["is_p2p"]:
                continue
            name, description = entry["process_group"]
            group = found.setdefault(
                name, {"description": description, "ranks": members.get(name), "collectives": {}, "pending": None}
            )
            number = entry["collective_seq_id"]
            group["collectives"][number] = _in_words(entry)
            if group["pending"] is None and not entry["retired"] and entry["state"] != "completed":
                group["pending"] = {"number": number, "since": entry["time_created_ns"] / 1e9}
    for group in found.values():
        group["collectives"] = dict(sorted(group["collectives"].items())[-MOST_COLLECTIVES:])
    return found


def _members() -> dict[str, list[int]]:
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    names = dict(getattr(world, "pg_names", {}))
    ranks = dict(getattr(world, "pg_group_ranks", {}))
    return {name: sorted(ranks[group]) for group, name in names.items() if group in ranks}


def _in_words(entry: dict[str, Any]) -> str:
    shapes = ", ".join(
        f"{dtype.lower()}{list(size)}" for size, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    )
    return f"{entry['profiling_name'].removeprefix('gloo:').removeprefix('nccl:')} {shapes[:80]}".rstrip()
