import os
import sys
from pathlib import Path

import pytest

from advisor.probe.live.host import PLACES, in_container, read_host
from advisor.probe.live.nics import read_nics
from advisor.probe.live.no_gpu import why_no_gpu
from advisor.probe.live.nvml import NO_LIBRARY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")

GIB = 2**30


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that puts files into a fake root folder: path -> text."""

    def put(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return put


def topology(cpus: int, sockets: int, threads: int = 2) -> dict[str, str]:
    """Lay out cpu0..n as Linux does on x86: the second thread of each core comes after all first ones."""
    cores = cpus // threads
    files = {}
    for cpu in range(cpus):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = ",".join(str(cpu % cores + k * cores) for k in range(threads))
        files[f"{folder}/thread_siblings_list"] = siblings + "\n"
        files[f"{folder}/physical_package_id"] = f"{cpu % cores * sockets // cores}\n"
    return files


XEON = {
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n"
    "flags\t\t: fpu vme sse2\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\nmodel name\t: another\n",
    "proc/meminfo": f"MemTotal:       {64 * 2**20} kB\nMemFree:  1 kB\nMemAvailable:   {60 * 2**20} kB\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
    "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\nMax locked memory    65536    65536    bytes\n",
    "proc/sys/kernel/osrelease": "5.15.0-112-generic\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
    "sys/devices/system/node/has_cpu": "0-1\n",
    "dev/shm/.keep": "",
    **topology(cpus=8, sockets=2),
}


def test_a_bare_metal_server_is_described_in_full(write) -> None:
    root = write(XEON)
    host, unknown = read_host(root)
    assert unknown == ()
    assert (host.os, host.cpu) == ("Ubuntu 22.04.4 LTS, Linux 5.15.0-112-generic", "Intel(R) Xeon(R) Platinum 8480C")
    assert (host.cpu_vendor, host.sockets, host.numa_nodes) == ("GenuineIntel", 2, 2)
    assert (host.cores, host.cpus) == (4, 8)
    assert (host.memory, host.memory_available, host.memlock) == (64 * GIB, 60 * GIB, 65536)
    assert host.shm == os.statvfs(root / "dev/shm").f_blocks * os.statvfs(root / "dev/shm").f_frsize
    assert host.virtual is False


def test_an_empty_root_gives_a_reason_for_each_missing_fact(tmp_path: Path) -> None:
    host, unknown = read_host(tmp_path)
    assert {u.what for u in unknown} == {f"host.{name}" for name in PLACES}
    assert all(getattr(host, name) is None for name in host.__struct_fields__)
    assert all(u.why for u in unknown)


def test_only_the_processors_of_the_affinity_mask_count(write) -> None:
    root = write({**XEON, "proc/self/status": "Cpus_allowed_list:\t1,4-5\n"})
    assert read_host(root)[0].cpus == 3


def test_a_hypervisor_flag_makes_a_virtual_machine(write) -> None:
    root = write({"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor sse2\n"})
    assert read_host(root)[0].virtual is True


def test_no_limit_of_locked_memory_reads_as_minus_one(write) -> None:
    root = write({"proc/self/limits": "Max locked memory         unlimited            unlimited            bytes\n"})
    assert read_host(root)[0].memlock == -1


ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}\n\n"


def test_an_arm_server_is_named_by_its_core(write) -> None:
    root = write(
        {
            "proc/cpuinfo": ARM.format(part="0xd4f"),
            "sys/class/dmi/id/sys_vendor": "NVIDIA\n",
            "sys/class/dmi/id/product_name": "GH200 P4352\n",
            "sys/devices/system/node/has_cpu": "0\n",
            **topology(cpus=4, sockets=1, threads=1),
        }
    )
    host, _ = read_host(root)
    assert (host.cpu, host.cpu_vendor, host.virtual) == ("Neoverse-V2", "ARM", False)
    assert (host.cores, host.sockets, host.numa_nodes) == (4, 1, 1)


def test_an_arm_core_that_is_new_to_us_keeps_its_number(write) -> None:
    assert read_host(write({"proc/cpuinfo": ARM.format(part="0xfff")}))[0].cpu == "ARM core 0xfff"


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("QEMU", "KVM Virtual Machine", True),
        ("Amazon EC2", "c7g.4xlarge", True),
        ("Amazon EC2", "c7g.metal", False),
        ("Supermicro", "ARS-111GL-NHR", False),
    ],
)
def test_an_arm_machine_tells_by_its_firmware_whether_it_is_virtual(write, vendor, product, virtual) -> None:
    root = write(
        {
            "proc/cpuinfo": ARM.format(part="0xd40"),
            "sys/class/dmi/id/sys_vendor": vendor,
            "sys/class/dmi/id/product_name": product,
        }
    )
    assert read_host(root)[0].virtual is virtual


def test_a_package_number_of_minus_one_is_unknown(write) -> None:
    root = write({"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1\n"})
    assert read_host(root)[0].sockets is None


def test_cgroup_2_limits_cut_processors_and_memory(write) -> None:
    root = write(
        {
            **XEON,
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/job/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{10 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon {6 * GIB}\ninactive_file {4 * GIB}\n",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
        }
    )
    host, _ = read_host(root)
    assert host.cpus == 2  # 2.5 processors of time
    assert (host.memory, host.memory_available) == (16 * GIB, 10 * GIB)


def test_cgroup_1_limits_of_a_container_are_found_at_the_mounted_root(write) -> None:
    root = write(
        {
            **XEON,
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {1 * GIB}\n",
        }
    )
    host, _ = read_host(root)
    assert (host.cpus, host.memory, host.memory_available) == (4, 8 * GIB, 6 * GIB)


def test_cgroup_1_without_limits_leaves_the_host_figures(write) -> None:
    root = write(
        {
            **XEON,
            "proc/self/cgroup": "5:memory:/\n4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        }
    )
    host, _ = read_host(root)
    assert (host.cpus, host.memory, host.memory_available) == (8, 64 * GIB, 60 * GIB)


def rdma(name: str, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand"):
    folder = f"sys/class/infiniband/{name}"
    return {
        f"{folder}/ports/1/state": f"{state}\n",
        f"{folder}/ports/1/rate": f"{rate}\n",
        f"{folder}/ports/1/link_layer": f"{layer}\n",
        f"{folder}/device/numa_node": "1\n",
    }


def card(name: str, speed: str = "25000", kind: str = "1", state: str = "up") -> dict[str, str]:
    folder = f"sys/class/net/{name}"
    return {
        f"{folder}/type": f"{kind}\n",
        f"{folder}/speed": f"{speed}\n",
        f"{folder}/operstate": f"{state}\n",
        f"{folder}/device/numa_node": "0\n",
    }


def test_infiniband_and_roce_cards_have_the_rate_of_their_ports(write) -> None:
    root = write({**rdma("mlx5_10"), **rdma("mlx5_2", rate="100 Gb/sec (4X EDR)", layer="Ethernet")})
    nics, unknown = read_nics(root)
    assert [(n.id, n.kind, n.bandwidth, n.numa) for n in nics] == [
        ("mlx5_2", "roce", 12.5e9, 1),
        ("mlx5_10", "infiniband", 50e9, 1),
    ]
    assert unknown == ()


def test_a_port_that_is_down_has_no_bandwidth_and_a_reason(write) -> None:
    nics, unknown = read_nics(write(rdma("mlx5_0", state="1: DOWN", rate="40 Gb/sec (4X QDR)")))
    assert nics[0].bandwidth is None
    assert [(u.what, "active" in u.why) for u in unknown] == [("mlx5_0.bandwidth", True)]


def test_an_elastic_fabric_adapter_is_known_by_its_driver(write) -> None:
    root = write({**rdma("rdmap16s27", layer="Unspecified"), "sys/bus/pci/drivers/efa/module": ""})
    (root / "sys/class/infiniband/rdmap16s27/device/driver").symlink_to(root / "sys/bus/pci/drivers/efa")
    assert read_nics(root)[0][0].kind == "efa"


def test_ethernet_cards_are_listed_without_loopback_bridges_and_rdma_twins(write) -> None:
    root = write(
        {
            **card("eno1"),
            **card("ens8"),
            "sys/class/net/ens8/device/infiniband/mlx5_0/name": "",
            **card("ib0", kind="32"),
            "sys/class/net/lo/type": "772\n",
            "sys/class/net/docker0/type": "1\n",
        }
    )
    nics, _ = read_nics(root)
    assert [(n.id, n.kind, n.bandwidth, n.numa) for n in nics] == [("eno1", "ethernet", 3.125e9, 0)]


def test_a_virtual_card_without_a_speed_says_so(write) -> None:
    nics, unknown = read_nics(write(card("eth0", speed="-1")))
    assert nics[0].bandwidth is None
    assert unknown[0].what == "eth0.bandwidth"


def test_a_container_without_cards_says_why_there_are_none(write) -> None:
    nics, unknown = read_nics(write({"sys/class/net/lo/type": "772\n", "sys/class/net/eth0/type": "1\n"}))
    assert nics == ()
    assert [u.what for u in unknown] == ["nics"]


def pci(address: str, vendor: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/{address}"
    return {f"{folder}/vendor": f"{vendor}\n", f"{folder}/class": f"{kind}\n"}


def test_a_gpu_without_a_driver_is_told_apart_from_no_gpu(write) -> None:
    root = write({**pci("0000:3b:00.0", "0x10de", "0x030200"), **pci("0000:00:1f.0", "0x8086", "0x060100")})
    why = why_no_gpu(NO_LIBRARY, root)
    assert "0000:3b:00.0" in why
    assert "install the driver" in why


def test_a_reason_that_has_its_own_remedy_gets_no_other(write) -> None:
    root = write({**pci("0000:3b:00.0", "0x10de", "0x030200"), ".dockerenv": ""})
    assert why_no_gpu("try X", root).endswith("but try X")


def test_nvidia_cards_that_are_no_gpus_do_not_count(write) -> None:
    root = write(pci("0000:05:00.0", "0x10de", "0x068000"))  # an NVSwitch
    assert why_no_gpu("no driver", root).startswith("no NVIDIA GPU")


def test_a_container_without_gpus_is_told_how_to_get_them(write) -> None:
    root = write({**pci("0000:3b:00.0", "0x10de", "0x030000"), ".dockerenv": ""})
    assert in_container(root)
    assert "--gpus all" in why_no_gpu(NO_LIBRARY, root)


def test_an_amd_gpu_is_named_as_not_supported(write) -> None:
    assert "AMD GPU" in why_no_gpu("no driver", write(pci("0000:c1:00.0", "0x1002", "0x038000")))
