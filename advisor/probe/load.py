"""Get a machine from what `--machine` says: a saved probe, the text of a link matrix, a machine's name, or words."""

import difflib
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from advisor.probe.document import read_document
from advisor.probe.merge import merge
from advisor.rules.derived_links import with_derived_links
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GpuModel, gpu_model, gpu_names
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Machine
from advisor.rules.measurements import Measurements

NO_GPU = "add what does with another --machine: the text of `nvidia-smi topo -m`, or words such as '8x a10g'"
LARGEST = 64 * 2**20  # bytes; a probe of 16 GPUs has 100 kB


def load_machine(*sources: str, gpu: str | None = None, gpu_memory: int | None = None) -> Machine:
    """Load a machine; `gpu` (a name) and `gpu_memory` (bytes) add what the sources do not say.

    A source is a file, "-" for standard input, or words; several are of one machine. Raises AdvisorError where one is
    none of these, and where `gpu` or `gpu_memory` contradict them.
    """
    parts = [_load(source) for source in sources]
    # a saved probe calls itself `this machine`
    machine = (
        merge([replace(part, source=source) for part, source in zip(parts, sources, strict=True)])
        if parts[1:]
        else parts[0]
    )
    if not machine.gpus and machine.host.cpus is None:  # a saved probe of a host without a GPU knows its processors
        raise AdvisorError(f"{machine.source} names no GPU", NO_GPU)
    if gpu is not None:
        machine = with_gpu(machine, known_gpu(gpu))
    if gpu_memory is not None:
        machine = with_memory(machine, gpu_memory)
    return with_link_bandwidths(with_derived_links(machine))


def load_measured(sources: Sequence[str]) -> Measurements | None:
    """Return what was measured on the machine of a saved probe; None for all other sources, and for several."""
    if len(sources) != 1 or sources[0] == "-" or not _exists(sources[0]):
        return None
    content = _read(sources[0]).removeprefix(BOM_UTF8)
    return read_document(content, sources[0]).measured if content.lstrip()[:1] == b"{" else None


def _load(source: str) -> Machine:
    """Load one source; the readers of words and texts only where they are needed, or they cost a start 40 ms."""
    if source != "-" and not _exists(source):
        from advisor.probe.instances import machine_in_words

        return machine_in_words(source)
    content = _read(source)
    name = "standard input" if source == "-" else source
    if content.removeprefix(BOM_UTF8).lstrip()[:1] == b"{":
        return read_document(content.removeprefix(BOM_UTF8), name).machine
    from advisor.probe.text.readers import machine_from_text

    # Windows PowerShell writes what `>` redirects as UTF-16
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8"
    try:
        machine = machine_from_text(content.decode(encoding, errors="replace"), name)
    except AdvisorError as error:
        raise AdvisorError(f"{name}: {error.message}", error.hint) from error
    return replace(machine, gpus=tuple(_by_data_sheet(gpu) for gpu in machine.gpus))


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except OSError:  # longer than a name of a file can be
        return False


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
