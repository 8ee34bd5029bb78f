"""Stand-ins for the hardware edge of the probe, a captured machine, and the stored pages of the reports."""

import ast
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from advisor.probe.live import nvml
from advisor.probe.steering import STEERING

CAPTURE = Path(__file__).parents[2] / "fixtures/captures/2xh200"  # what one machine's sources said


class NVMLError(Exception):
    """An error as pynvml raises it: a number of nvmlReturn_t and its text."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")


class FabricInfo(ctypes.Structure):
    """The part of c_nvmlGpuFabricInfoV_t that is read."""

    _fields_ = (("state", ctypes.c_uint),)


class FakeNvml(ModuleType):
    """Answers NVML calls from tables; what no table has is "not supported", as NVML says it.

    `gpus`: for each GPU, function name -> answer, an error or a tuple of answers by link number; "fields" by field, or
    by field and scope; "mig" is a list of such tables, one for each instance.
    `system`: the same for calls without a GPU. `pairs`: common ancestor by pair of indices. `peers`: statuses by pair.
    """

    NVMLError = NVMLError

    def __init__(
        self,
        gpus: list[dict[str, Any]] | None = None,
        system: dict[str, Any] | None = None,
        pairs: dict[tuple[int, int], int] | None = None,
        peers: dict[tuple[int, int], list[int]] | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.gpus, self.pairs, self.peers = gpus or [], pairs or {}, peers or {}
        self.system = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": len(self.gpus)} | (system or {})
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "c_nvmlGpuFabricInfoV_t" and any("fabric" in gpu for gpu in self.gpus):
            return FabricInfo
        if not name.startswith("nvml") or name in self.system.get("absent", ()):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append(name)
            return self._answer(name, args)

        return call

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetTopologyCommonAncestor":
            return self._given(self.pairs.get((args[0], args[1])))
        if name == "nvmlDeviceGetHandleByIndex":
            return self._given(self.gpus[args[0]].get(name, args[0]))
        if name == "nvmlDeviceGetP2PStatus":
            statuses = self.peers.get((args[0], args[1]), [])
            return self._given(statuses[args[2]] if args[2] < len(statuses) else NOT_SUPPORTED)
        if name.startswith("nvmlDevice") and args:
            return self._given(self._of_device(name, self._table(args[0]), args[1:]))
        return self._given(self.system.get(name, NOT_SUPPORTED))

    def _table(self, handle: Any) -> dict[str, Any]:
        """Find the answers of a GPU, or of an instance, whose handle is a pair."""
        table: dict[str, Any] = (
            self.gpus[handle[0]]["mig"][handle[1]] if isinstance(handle, tuple) else self.gpus[handle]
        )
        return table

    def _of_device(self, name: str, table: dict[str, Any], args: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetFieldValues":
            return [_field(table.get("fields", {}).get(field)) for field in args[0]]
        if name == "nvmlDeviceGetMaxMigDeviceCount" and "mig" in table:
            return len(table["mig"]) + 1  # the driver leaves gaps
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            known = args[0] < len(table.get("mig", ()))
            return (self.gpus.index(table), args[0]) if known else NVMLError(6, "Not Found")
        if name == "nvmlDeviceGetGpuFabricInfoV" and "fabric" in table:
            args[0]._obj.state = table["fabric"]
            return None
        answer = table.get(name, NOT_SUPPORTED)
        if "NvLink" in name and isinstance(answer, tuple):
            return answer[args[0]] if args[0] < len(answer) else NOT_SUPPORTED
        return answer

    def _given(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    @classmethod
    def from_capture(cls, text: str) -> "FakeNvml":
        """Answer as a machine did whose calls were written down, one a line: `nvml-calls.txt`."""
        gpus: list[dict[str, Any]] = []
        pairs: dict[tuple[int, int], int] = {}
        peers: dict[tuple[int, int], list[int]] = {}
        system: dict[str, Any] = {}
        for line in text.splitlines():
            words = line.split()
            if words[0] == "driver":
                system["nvmlSystemGetDriverVersion"] = words[1]
                system["nvmlSystemGetCudaDriverVersion_v2"] = int(words[-1])
            elif words[2:3] == ["common"]:
                pairs[int(words[0]), int(words[1])] = int(words[3])
                peers[int(words[0]), int(words[1])] = ast.literal_eval(line.split("atomics ")[1])
            elif not line.startswith(" "):
                gpus.append(_first_line(line))
            elif words[0].startswith("nvmlDevice"):
                gpus[-1][words[0]] = _value(line.split(maxsplit=1)[1])
            elif words[0] == "link":
                _add_link(gpus[-1], words)
            elif words[0] == "fields":
                _repeat_links(gpus[-1], _fields(line)[91])
        return cls(gpus, system, pairs, peers)


def _first_line(line: str) -> dict[str, Any]:
    found = re.match(r"\d+ (.+) (GPU-\S+) c_nvmlMemory_t\(total: (\d+) B, free: (\d+) B, used: (\d+) B\)", line)
    assert found is not None, line
    memory = SimpleNamespace(total=int(found[3]), free=int(found[4]), used=int(found[5]))
    return {"nvmlDeviceGetName": found[1], "nvmlDeviceGetUUID": found[2], "nvmlDeviceGetMemoryInfo": memory}


def _value(text: str) -> Any:
    if text.startswith(("NVMLError", "TypeError")):
        return NOT_SUPPORTED
    if text.startswith("nvmlPciInfo_t"):
        return pci(text.split("busId: ")[1].rstrip(")"))
    return ast.literal_eval(text)


def _add_link(gpu: dict[str, Any], words: list[str]) -> None:
    state, version, remote, kind = int(words[2]), int(words[3]), pci(words[4]), int(words[5])
    told = (("State", state), ("Version", version), ("RemotePciInfo", remote), ("RemoteDeviceType", kind))
    for name, value in told:
        gpu[f"nvmlDeviceGetNvLink{name}"] = (*gpu.get(f"nvmlDeviceGetNvLink{name}", ()), value)


def _fields(line: str) -> dict[int, int]:
    """Read the values of a line of NVML fields: fields [(number, error, value), ...]."""
    return {number: value for number, _, value in ast.literal_eval(line.split(maxsplit=1)[1])}


def _repeat_links(gpu: dict[str, Any], count: int) -> None:
    """The capture holds the first links only, and their number (field 91); they are all alike."""
    for name in [name for name in gpu if "NvLink" in name]:
        gpu[name] = (*gpu[name], *(gpu[name][-1:] * (count - len(gpu[name]))))


def _field(value: int | None) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=3 if value is None else 0, value=SimpleNamespace(uiVal=value or 0))


def pci(bus_id: str) -> SimpleNamespace:
    return SimpleNamespace(busId=bus_id.encode())


@pytest.fixture
def use_nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that puts a fake in place of pynvml: its tables, or a FakeNvml."""

    def use(fake: FakeNvml | None = None, **tables: Any) -> FakeNvml:
        fake = fake or FakeNvml(**tables)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        nvml.shutdown()
        return fake

    nvml.shutdown()
    yield use
    nvml.shutdown()


@pytest.fixture
def captured_nvml(use_nvml: Any) -> FakeNvml:
    """NVML of the captured machine with two H200 in a VM."""
    return use_nvml(FakeNvml.from_capture((CAPTURE / "nvml-calls.txt").read_text()))


@pytest.fixture
def nvml_error() -> type[NVMLError]:
    return NVMLError


@pytest.fixture
def nvml_pci() -> Any:
    return pci


class TextFile(SingleFileSnapshotExtension):
    """One readable file for each snapshot."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def page(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Compare a report with its stored text."""
    return snapshot.use_extension(TextFile)


@pytest.fixture
def use_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a shell script the `nvidia-smi` program, the only one on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def use(script: str) -> None:
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return use


@pytest.fixture
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with nothing in it, and no sign of the machine that the test runs on."""
    for name in [name for name in os.environ if STEERING.fullmatch(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path / "home")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no nvidia-smi
    return tmp_path


@pytest.fixture
def captured_host(
    bare_host: Path, captured_nvml: FakeNvml, use_nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The captured machine: /proc and /sys as a root folder, NVML, `nvidia-smi` and the Python packages."""
    for block in (CAPTURE / "host.txt").read_text().split("== ")[1:]:
        name, _, text = block.partition("\n")
        file = bare_host / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_blocks=67108864, f_bavail=67108864, f_frsize=4096)
    )  # its /dev/shm
    monkeypatch.syspath_prepend(bare_host / "opt/site")
    use_nvidia_smi(f"/bin/cat {CAPTURE / 'topo-m.txt'}")
    return bare_host
