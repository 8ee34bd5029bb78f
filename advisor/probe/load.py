"""Get a machine from what `--machine` names: a saved probe, the text of a link matrix, or a description in words."""

import difflib
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from msgspec.structs import replace

from advisor.probe.described import looks_described, machine_from_description
from advisor.probe.document import read_document
from advisor.probe.text.topo_m import machine_from_topo_m
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GpuModel, gpu_model, gpu_names
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Machine

LARGEST = 64 * 2**20  # bytes; a probe of 16 GPUs has 100 kB


def load_machine(source: str, *, gpu: str | None = None, gpu_memory: int | None = None) -> Machine:
    """Load a machine; `gpu` (a name) and `gpu_memory` (bytes) add what the source does not say.

    `source` is a file, "-" for standard input, or words. Raises AdvisorError where it is none of these, and where
    `gpu` or `gpu_memory` contradict it.
    """
    machine = _load(source)
    if gpu is not None:
        machine = with_gpu(machine, known_gpu(gpu))
    if gpu_memory is not None:
        machine = with_memory(machine, gpu_memory)
    return with_link_bandwidths(machine)


def _load(source: str) -> Machine:
    if source != "-" and not Path(source).exists():
        if looks_described(source):
            return machine_from_description(source)
        hint = "give a file, or words such as '4x a10g pcie3x8' or '2x8 h100 nvswitch, ib 8x400'"
        raise AdvisorError(f"there is no file {source}", hint)
    content = _read(source)
    name = "standard input" if source == "-" else source
    if content.removeprefix(BOM_UTF8).lstrip()[:1] == b"{":
        return read_document(content.removeprefix(BOM_UTF8), name)
    # Windows PowerShell writes what `>` redirects as UTF-16
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8"
    try:
        machine = machine_from_topo_m(content.decode(encoding, errors="replace"), name)
    except AdvisorError as error:
        raise AdvisorError(f"{name}: {error.message}", error.hint) from error
    return replace(machine, gpus=tuple(_by_data_sheet(gpu) for gpu in machine.gpus))


def _read(source: str) -> bytes:
    try:
        if source == "-":
            content = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(LARGEST + 1)
    except OSError as error:
        raise AdvisorError(f"can't read {source}: {error.strerror}", "give a file that you may read") from error
    if len(content) > LARGEST:
        raise AdvisorError(f"{source} is larger than {LARGEST >> 20} MiB", "give a saved probe or a link matrix")
    return content


def known_gpu(name: str) -> GpuModel:
    """Find a GPU by name, or raise an AdvisorError that suggests near names."""
    model = gpu_model(name)
    if model is not None:
        return model
    near = difflib.get_close_matches(name.lower(), gpu_names(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "give --gpu-memory instead, for example --gpu-memory 24GB"
    raise AdvisorError(f"no GPU called {name!r} is known", hint)


def with_gpu(machine: Machine, model: GpuModel) -> Machine:
    """Name the GPUs that have no name, with the memory and compute capability of the model."""
    for gpu in machine.gpus:
        there = gpu_model(gpu.name) if gpu.name else None
        if gpu.name is not None and there != model:
            raise AdvisorError(
                f"{machine.source} says that {gpu.id} is a {gpu.name}, not a {model.name}", "leave --gpu out"
            )
    return replace(machine, gpus=tuple(_named(gpu, model) for gpu in machine.gpus))


def _by_data_sheet(gpu: Gpu) -> Gpu:
    """Add what the data sheet tells of a GPU that the text names."""
    model = gpu_model(gpu.name) if gpu.name else None
    return gpu if model is None else _named(gpu, model)


def _named(gpu: Gpu, model: GpuModel) -> Gpu:
    return replace(
        gpu,
        name=gpu.name or model.name,
        memory=gpu.memory or model.memory,
        compute_capability=gpu.compute_capability or model.compute_capability,
    )


def with_memory(machine: Machine, memory: int) -> Machine:
    """Give the GPUs this much memory, bytes. Raises AdvisorError where the source says otherwise by more than 15 %."""
    for gpu in machine.gpus:
        if gpu.memory is not None and abs(gpu.memory / memory - 1) > 0.15:
            raise AdvisorError(
                f"{gpu.id} has {gpu.memory / 1e9:.1f} GB, not {memory / 1e9:.1f} GB", "leave --gpu-memory out"
            )
    return replace(machine, gpus=tuple(replace(gpu, memory=gpu.memory or memory) for gpu in machine.gpus))
