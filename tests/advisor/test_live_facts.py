"""What the live probe adds of a host: interfaces, the IOMMU, ACS, services, segments in /dev/shm, ports of cards."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from advisor.probe.live.gpu_state import with_state
from advisor.probe.live.host import read_host
from advisor.probe.live.interfaces import read_interfaces
from advisor.probe.live.nics import read_nics
from advisor.probe.live.pci_facts import ROOT_ONLY, read_acs, read_iommu
from advisor.probe.live.segments import read_segments
from advisor.probe.live.services import read_services
from advisor.probe.steering import steers
from advisor.rules.machine import Gpu, Machine, Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")
GPU = "0000:3b:00.0"


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_interfaces_are_told_apart_and_one_has_the_default_route(tmp_path: Path) -> None:
    net = "sys/class/net"
    files: dict[str, str | bytes] = {
        f"{net}/lo/type": "772\n",
        f"{net}/lo/operstate": "unknown\n",
        f"{net}/lo/flags": "0x9\n",
        f"{net}/docker0/type": "1\n",
        f"{net}/docker0/bridge/x": "",
        f"{net}/docker0/operstate": "down\n",
        f"{net}/eno1/type": "1\n",
        f"{net}/eno1/device/x": "",
        f"{net}/eno1/operstate": "up\n",
        f"{net}/eno1/speed": "25000\n",
        f"{net}/ib0/type": "32\n",
        f"{net}/veth1/type": "1\n",
        f"{net}/tun0/type": "65534\n",
        "proc/net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask\n"
        "eno1 00000000 0100000A 0003 0 0 0 00000000\neno1 0000000A 00000000 0001 0 0 0 00FFFFFF\n",
    }
    found = {interface.name: interface for interface in read_interfaces(put(tmp_path, files))}
    assert {name: interface.kind for name, interface in found.items()} == {
        "lo": "loopback",
        "docker0": "bridge",
        "eno1": "ethernet",
        "ib0": "infiniband",
        "veth1": "virtual",
        "tun0": "tunnel",
    }
    assert [found[name].up for name in ("lo", "docker0", "eno1", "ib0")] == [True, False, True, None]
    assert [name for name, interface in found.items() if interface.default_route] == ["eno1"]
    assert found["eno1"].bandwidth == 25e9 / 8


def test_this_host_has_addresses_and_is_probed_quickly() -> None:
    start = time.process_time()
    addresses = [address for interface in read_interfaces() for address in interface.addresses]
    assert all("/" in address for address in addresses)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("group", "line", "mode"),
    [
        ("DMA-FQ", "", "translating"),
        ("DMA", "iommu=pt", "translating"),
        ("identity", "intel_iommu=on", "passthrough"),
        ("", "intel_iommu=on", "translating"),
        ("", "", None),
    ],
)
def test_the_group_of_a_gpu_says_how_the_iommu_treats_it(
    tmp_path: Path, group: str, line: str, mode: str | None
) -> None:
    put(tmp_path, {f"sys/bus/pci/devices/{GPU}/iommu_group/type": group, "sys/kernel/iommu_groups/7/type": "DMA"})
    assert read_iommu([GPU], line, tmp_path) == mode


def test_without_groups_the_iommu_is_off_and_without_sysfs_not_known(tmp_path: Path) -> None:
    assert read_iommu([GPU], None, tmp_path) is None
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert read_iommu([GPU], "intel_iommu=on", tmp_path) == "off"


def space(control: int) -> bytes:
    """Make a configuration of two extended capabilities, of which ACS is the second."""
    head = bytes(0x100) + (0x0001 | 0x140 << 20).to_bytes(4, "little")
    return (
        head.ljust(0x140, b"\0") + (0x000D).to_bytes(4, "little") + bytes(2) + control.to_bytes(2, "little") + bytes(8)
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [(space(0b11101), (True, None)), (space(0b1), (False, None)), (bytes(64), (None, ROOT_ONLY))],
)
def test_acs_is_read_from_the_ports_above_a_gpu(tmp_path: Path, content: bytes, found: object) -> None:
    device = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0" / GPU
    put(device, {"config": bytes(64)})
    put(device.parent, {"config": content})
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices" / GPU).symlink_to(device)
    assert read_acs([GPU], tmp_path) == found


@pytest.mark.parametrize(
    ("names", "state", "manager"),
    [
        (("nv-fabricmanage", "nvidia-cuda-mps"), "completed", ("active", True)),
        (("bash",), "in progress", ("absent", False)),
        (("bash",), None, (None, False)),
        ((), "in progress", (None, None)),
    ],
)
def test_services_are_known_by_their_processes(
    tmp_path: Path, names: tuple[str, ...], state: str | None, manager: object
) -> None:
    put(tmp_path, {f"proc/{number}/comm": f"{name}\n" for number, name in enumerate(names, 1)})
    machine = Machine(gpus=(Gpu(id="GPU0", index=0, fabric_state=state),))
    assert read_services(machine, tmp_path) == manager


def test_a_server_of_mps_on_a_gpu_shows_it_in_a_container_too(tmp_path: Path) -> None:
    put(tmp_path, {".dockerenv": "", "proc/1/comm": "bash"})
    process = Process(pid=7, name="/usr/bin/nvidia-cuda-mps-server")
    assert read_services(Machine(gpus=(Gpu(id="GPU0", index=0, processes=(process,)),)), tmp_path) == (None, True)
    assert read_services(Machine(), tmp_path) == (None, None)


def test_segments_are_open_or_left_over(tmp_path: Path) -> None:
    put(tmp_path, {"dev/shm/nccl-open": b"12", "dev/shm/torch_1_2_3": b"1", "dev/shm/other": b"1"})
    with (tmp_path / "dev/shm/nccl-open").open("rb"):
        found = read_segments(tmp_path)
    assert [(segment.name, segment.size, segment.open) for segment in found] == [
        ("nccl-open", 2, True),
        ("torch_1_2_3", 1, False),
    ]


def test_limits_quota_and_command_line_of_the_host(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "proc/self/limits": "Max stack size  8388608  unlimited  bytes\nMax open files  1024  4096  files\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz token=abc intel_iommu=on iommu=pt pci=realloc\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "proc/cpuinfo": "model name : x\n",
        ".dockerenv": "",
        "dev/infiniband/uverbs0": "",
    }
    host, _ = read_host(put(tmp_path, files))
    assert (host.stack, host.open_files, host.cpu_quota, host.container) == (8388608, 1024, 1.5, True)
    assert (host.kernel_command_line, host.rdma_devices) == ("intel_iommu=on iommu=pt pci=realloc", True)


def test_a_port_is_active_or_down_and_counts_lost_links(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    put(tmp_path, {f"{port}/state": "1: DOWN\n", f"{port}/counters/link_downed": "27\n"})
    ((nic,), _) = read_nics(tmp_path)
    assert (nic.state, nic.link_downed) == ("down", 27)


def test_nvml_tells_load_power_and_compute_mode(use_nvml) -> None:
    answers = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=3),
        "nvmlDeviceGetPowerUsage": 118200,
        "nvmlDeviceGetComputeMode": 3,
    }
    use_nvml(gpus=[answers])
    gpu, _ = with_state(Gpu(id="GPU0", index=0))
    assert (gpu.utilization, gpu.power, gpu.compute_mode) == (0.97, 118.2, "Exclusive_Process")


@pytest.mark.parametrize("name", ["NCCL_SHM_DISABLE", "TORCH_NCCL_BLOCKING_WAIT", "TOKENIZERS_PARALLELISM", "UCX_TLS"])
def test_a_variable_that_steers_is_kept(name: str) -> None:
    assert steers(name)


@pytest.mark.parametrize("name", ["HOME", "HF_TOKEN", "TORCH_HOME", "NCCL_AUTH_TOKEN", "UCX_SECRET_KEY", "SLURM_JWT"])
def test_a_variable_that_may_hold_a_secret_is_not(name: str) -> None:
    assert not steers(name)
