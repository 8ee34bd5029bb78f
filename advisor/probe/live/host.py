"""Describe the host without its GPUs: processors, memory, limits. Inside a container, what the container may use."""

import os
import re
import sys
from pathlib import Path

from advisor.probe.live import cgroup
from advisor.probe.live.sysfs import ROOT, folders, parse_ranges, read, read_int
from advisor.rules.machine import Host, Unknown

# Where each fact is looked for: the reason that is given when it is not there.
PLACES = {
    "os": "/etc/os-release and /proc/sys/kernel/osrelease",
    "cpu": "/proc/cpuinfo",
    "cpu_vendor": "/proc/cpuinfo",
    "cpu_family": "/proc/cpuinfo",
    "cpu_model_number": "/proc/cpuinfo",
    "sockets": "/sys/devices/system/cpu/cpu*/topology/physical_package_id",
    "numa_nodes": "/sys/devices/system/node/has_cpu",
    "cores": "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    "cpus": "Cpus_allowed_list in /proc/self/status",
    "memory": "MemTotal in /proc/meminfo",
    "memory_available": "MemAvailable in /proc/meminfo",
    "shm": "/dev/shm",
    "memlock": "/proc/self/limits",
    "virtual": "flags in /proc/cpuinfo and /sys/class/dmi/id",
}
X86_ONLY = ("cpu_family", "cpu_model_number")

# Arm's own numbers, as in util-linux `sys-utils/lscpu-arm.c`; /proc/cpuinfo has no names on that architecture.
ARM_VENDORS = {
    "0x41": "ARM",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x61": "Apple",
    "0xc0": "Ampere",
}
ARM_CORES = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
}

STEERING = re.compile(
    r"((intel|amd)_?iommu|iommu|pci|pcie|numa|isolcpus|nohz|rcu_nocbs|(default_)?huge|transparent_huge|mitigations|swiotlb"
    r"|nvidia|nouveau|rd\.driver|modprobe\.blacklist|module_blacklist|(intel_)?idle|processor\.|cgroup|systemd\.unified)"
    r"[\w.]*(=|$)"
)
HYPERVISORS = ("kvm", "qemu", "vmware", "virtual", "xen", "bochs", "google compute engine", "openstack", "bhyve")


def read_host(root: Path = ROOT) -> tuple[Host, tuple[Unknown, ...]]:
    """Read the host's facts, with a reason for each that is missing."""
    host = _linux(root) if sys.platform == "linux" else _portable()
    skipped = X86_ONLY if host.cpu else ()
    missing = [name for name in PLACES if getattr(host, name) is None and name not in skipped]
    return host, tuple(Unknown(what=f"host.{name}", why=f"not to be read from {PLACES[name]}") for name in missing)


def in_container(root: Path = ROOT) -> bool:
    """Say whether Docker, Podman or Kubernetes runs this process, as far as they leave a sign of it."""
    signs = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")
    return any((root / sign).exists() for sign in signs)


def _linux(root: Path) -> Host:
    cpuinfo = _first_block(root / "proc/cpuinfo")
    cores, sockets = _cores_and_sockets(root)
    memory, available = _memory(root)
    nodes = read(root / "sys/devices/system/node/has_cpu")  # has_cpu: on Grace, GPU memory is a node too
    return Host(
        os=_os(root),
        cpu=_cpu_name(cpuinfo),
        cpu_vendor=cpuinfo.get("vendor_id") or ARM_VENDORS.get(cpuinfo.get("CPU implementer", "")),
        cpu_family=_number(cpuinfo.get("cpu family")),
        cpu_model_number=_number(cpuinfo.get("model")),
        sockets=sockets,
        numa_nodes=len(parse_ranges(nodes or "")) or None,
        cores=cores,
        cpus=_cpus(root),
        memory=memory,
        memory_available=available,
        shm=_size(root / "dev/shm"),
        shm_free=_size(root / "dev/shm", free=True),
        memlock=_limit(root, "Max locked memory"),
        stack=_limit(root, "Max stack size"),
        open_files=_limit(root, "Max open files"),
        cpu_quota=cgroup.cpu_quota(root),
        container=in_container(root) if cpuinfo else None,
        kernel_command_line=_command_line(root),
        rdma_devices=(root / "dev/infiniband").is_dir() if (root / "dev").is_dir() else None,
        virtual=_virtual(root, cpuinfo),
    )


def _portable() -> Host:
    """Read what psutil knows on systems without /proc, such as macOS."""
    import platform

    import psutil

    memory = psutil.virtual_memory()
    return Host(
        os=platform.platform(),
        cpu=platform.processor() or None,
        cores=psutil.cpu_count(logical=False),
        cpus=psutil.cpu_count(),
        memory=memory.total,
        memory_available=memory.available,
    )


def _os(root: Path) -> str | None:
    """Name the distribution and the kernel."""
    release = dict(line.split("=", 1) for line in (read(root / "etc/os-release") or "").splitlines() if "=" in line)
    kernel = read(root / "proc/sys/kernel/osrelease")
    names = [release.get("PRETTY_NAME", "").strip('"'), f"Linux {kernel}" if kernel else ""]
    return ", ".join(name for name in names if name) or None


def _first_block(path: Path) -> dict[str, str]:
    """Read the description of the first processor: all of a host's are taken to be equal."""
    fields: dict[str, str] = {}
    for line in (read(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if not colon and fields:
            break
        fields[name.strip()] = value.strip()
    return fields


def _cpu_name(cpuinfo: dict[str, str]) -> str | None:
    if name := cpuinfo.get("model name"):
        return name
    vendor, part = cpuinfo.get("CPU implementer"), cpuinfo.get("CPU part")
    if vendor is None or part is None:
        return None
    return ARM_CORES.get((vendor, part), f"{ARM_VENDORS.get(vendor, 'Arm-compatible')} core {part}")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _cores_and_sockets(root: Path) -> tuple[int | None, int | None]:
    """Count the distinct sets of hardware threads and the distinct packages; -1 is a package that is not told."""
    threads, packages = set(), set()
    for cpu in folders(root / "sys/devices/system/cpu"):
        if not cpu.name.removeprefix("cpu").isdecimal():
            continue
        threads.add(read(cpu / "topology/thread_siblings_list"))
        packages.add(read_int(cpu / "topology/physical_package_id"))
    return len(threads - {None}) or None, len(packages - {None, -1}) or None


def _cpus(root: Path) -> int | None:
    """Count the processors in the affinity mask, cut to a container's time quota: a thread more would be throttled."""
    allowed = len(parse_ranges(_fields(root / "proc/self/status").get("Cpus_allowed_list", "")))
    quota = cgroup.cpu_quota(root)
    if not allowed or quota is None:
        return allowed or None
    return max(1, min(allowed, int(quota)))


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return total and available bytes (`free -b`), cut to the limits of the control groups."""
    meminfo = _fields(root / "proc/meminfo")
    total = [_kib(meminfo.get("MemTotal")), cgroup.memory_limit(root)]
    available = [_kib(meminfo.get("MemAvailable")), cgroup.memory_free(root)]
    return _lowest(total), _lowest(available)


def _lowest(amounts: list[int | None]) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _kib(text: str | None) -> int | None:
    number = (text or "").split(" ")[0]
    return int(number) * 1024 if number.isdecimal() else None


def _fields(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in (read(path) or "").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _command_line(root: Path) -> str | None:
    """Keep of the kernel's command line what steers devices and memory; the rest may name a host or hold a secret."""
    line = read(root / "proc/cmdline")
    return None if line is None else " ".join(word for word in line.split() if STEERING.match(word))


def _size(folder: Path, *, free: bool = False) -> int | None:
    """Return the bytes of the file system at a folder (`df /dev/shm`), or those of them that are free."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return (system.f_bavail if free else system.f_blocks) * system.f_frsize


def _limit(root: Path, name: str) -> int | None:
    """Return a limit of this process (`ulimit -l -s -n`, sizes there in KiB), -1 for none."""
    for line in (read(root / "proc/self/limits") or "").splitlines():
        if line.startswith(name):
            soft = line.removeprefix(name).split()[0]
            return -1 if soft == "unlimited" else int(soft)
    return None


def _virtual(root: Path, cpuinfo: dict[str, str]) -> bool | None:
    """Say whether this is a virtual machine (`systemd-detect-virt --vm`)."""
    if "flags" in cpuinfo:  # x86: a hypervisor sets this bit, bare metal never does
        return "hypervisor" in cpuinfo["flags"].split()
    names = [read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    product = " ".join(name for name in names if name).lower()
    if not product:
        return None
    if "amazon ec2" in product:
        return ".metal" not in product
    return any(name in product for name in HYPERVISORS)
