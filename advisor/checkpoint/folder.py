"""The folder of a run's checkpoints: which are complete, how one becomes so, and what killed saves leave behind.

    000007-step-1200/             complete: its name appears in one rename, with everything on disk
        manifest.json             size and CRC-32 of every other file
        state.pt or state/        model and optimizer: one file, or shards of torch.distributed.checkpoint
        shared.pt, rank-0.pt ...  what is the same on all ranks; random states and sampler of each
    .000008-step-1300.partial/    being written, being removed, or left by a killed process

The first number counts saves, so that the newest is the last one saved, also where a run went back to an older step.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"(\d{6,})-step-(\d+)")
PARTIAL = re.compile(r"\.\d{6,}-step-\d+\.partial")
CHUNK = 1 << 22  # bytes

Measure = tuple[int, int]  # of a file: size in bytes, CRC-32


class CheckpointError(RuntimeError):
    """What happened to a checkpoint, and what to do about it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was completed; whether it still is whole, `damage` tells."""

    path: Path
    number: int  # counts the saves of the folder
    step: int


class MeasuredFile:
    """A file written from start to end, measured on the way; once closed its content is on the disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._size = self._crc = 0

    @property
    def measure(self) -> Measure:
        return self._size, self._crc

    def write(self, data: bytes | memoryview) -> int:
        self._crc = zlib.crc32(data, self._crc)
        written = self._file.write(data)
        self._size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> "MeasuredFile":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def write_file(path: Path, content: bytes) -> Measure:
    with MeasuredFile(path) as file:
        file.write(content)
    return file.measure


def measure(path: Path) -> Measure:
    """Read a file through and measure it."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoints(folder: Path) -> list[Checkpoint]:
    """List the completed checkpoints of a folder, the newest first."""
    try:
        names = [(path, NAME.fullmatch(path.name)) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = [Checkpoint(path, int(match[1]), int(match[2])) for path, match in names if match]
    return sorted(found, key=lambda checkpoint: checkpoint.number, reverse=True)


def begin(folder: Path, step: int) -> Path:
    """Remove what killed saves left, and make the folder that a new checkpoint is written in."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if PARTIAL.fullmatch(path.name):
            shutil.rmtree(path)
    number = max((checkpoint.number for checkpoint in checkpoints(folder)), default=0) + 1
    partial = folder / f".{number:06}-step-{step}.partial"
    partial.mkdir()
    return partial


def complete(partial: Path, manifest: dict[str, Any], files: dict[str, Measure]) -> None:
    """Turn what was written, each file of it on the disk, into a complete checkpoint in one step."""
    content = json.dumps({"version": VERSION, **manifest, "files": files}, indent=1)
    write_file(partial / MANIFEST, content.encode())
    for path in (*partial.iterdir(), partial):
        if path.is_dir():
            sync_folder(path)
    partial.rename(partial.with_name(partial.name.removeprefix(".").removesuffix(".partial")))
    sync_folder(partial.parent)


def prune(folder: Path, keep: int) -> None:
    """Remove what is older than the `keep` newest checkpoints; one with a file missing or cut does not count."""
    whole = 0
    for checkpoint in checkpoints(folder):
        if whole < keep:
            whole += sizes_differ(checkpoint.path) is None
            continue
        leaving = folder / f".{checkpoint.path.name}.partial"  # half removed it must not pass for a checkpoint
        checkpoint.path.rename(leaving)
        shutil.rmtree(leaving)


def discard(partial: Path) -> None:
    """Remove what a failed save wrote, as far as that is possible; the next save removes the rest."""
    with contextlib.suppress(OSError):
        shutil.rmtree(partial)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint. Raises OSError or ValueError where there is no usable one."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} is not one of ours")
    if manifest["version"] != VERSION:
        raise CheckpointError(
            f"{path} has format {manifest['version']}, this version reads {VERSION}: use the version that wrote it"
        )
    return manifest


def sizes_differ(path: Path) -> str | None:
    """Say which file of a checkpoint is missing or cut; None where all sizes are as written."""
    try:
        files = read_manifest(path)["files"]
        for name, (size, _) in files.items():
            there = (path / name).stat().st_size
            if there != size:
                return f"{name} has {there} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError) as error:
        return f"{MANIFEST} can't be read ({error})"
    return None


def damage(path: Path, names: Iterable[str]) -> str | None:
    """Say which of the named files differs from what was written; None where none does."""
    files = read_manifest(path)["files"]
    for name in names:
        try:
            if list(measure(path / name)) != list(files[name]):
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} can't be read ({error.strerror})"
    return None
