import sys
from pathlib import Path

import pytest
from msgspec import structs

from advisor.probe.document import read_document
from advisor.probe.live import nvidia_smi
from advisor.probe.live.host import read_host
from advisor.probe.live.machine import probe_live
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Host, Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")

FIXTURE = Path(__file__).parents[2] / "fixtures/machines/2xh200-nv18.json"
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tPIX\t0-3\t0\t\tN/A
GPU1\tSYS\t X \tSYS\t4-7\t1\t\tN/A
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""


# of the host and its software, what is not said where it can't be read: few would miss it
UNSAID = {"shm_free", "stack", "open_files", "cpu_quota", "container", "kernel_command_line", "rdma_devices"}
UNSAID |= {"iommu", "acs", "fabric_manager", "mps", "topology_file"}


def say(text: str) -> str:
    return f"/bin/cat <<'END'\n{text}END"


def whys(machine: Machine) -> dict[str, str]:
    return {gap.what: gap.why for gap in machine.unknown}


def test_the_captured_machine_is_described_as_the_fixture_has_it(captured_host) -> None:
    machine = probe_live(captured_host)
    stored = read_document(FIXTURE.read_bytes(), FIXTURE.name).machine
    assert structs.replace(machine.software, python=None) == structs.replace(stored.software, python=None)
    assert structs.replace(machine, software=stored.software) == stored


def test_what_nvml_hides_in_a_vm_comes_from_the_matrix(captured_host) -> None:
    machine = probe_live(captured_host)
    assert [(gpu.numa, gpu.cpu_affinity) for gpu in machine.gpus] == [(0, tuple(range(32)))] * 2
    assert [(link.code, link.kind, link.bandwidth_source) for link in machine.links] == [
        ("NV18", "nvlink", "data sheet")
    ]
    assert not any("GPU" in what for what in whys(machine))


def test_without_nvidia_smi_the_links_come_from_nvml_and_the_rest_is_said(captured_host) -> None:
    (captured_host / "bin/nvidia-smi").unlink()
    machine = probe_live(captured_host)
    assert [link.code for link in machine.links] == ["NV18"]
    assert "nvidia-smi topo -m" in whys(machine)["links to network cards"]
    assert whys(machine)["cpu_affinity, numa of GPU0, GPU1"] == "NVML: Not Supported"


def test_without_nvml_the_matrix_still_lists_the_gpus(bare_host, use_nvml, use_nvidia_smi, nvml_error) -> None:
    use_nvml(system={"nvmlInit": nvml_error(4, "Insufficient Permissions")})
    use_nvidia_smi(say(MATRIX))
    machine = probe_live(bare_host)
    assert [(gpu.id, gpu.name, gpu.numa) for gpu in machine.gpus] == [("GPU0", None, 0), ("GPU1", None, 1)]
    assert [link.a + link.b + link.code for link in machine.links] == ["GPU0GPU1SYS", "GPU0NIC0PIX", "GPU1NIC0SYS"]
    (why,) = [why for what, why in whys(machine).items() if what.startswith("name, memory")]
    assert "/dev/nvidiactl" in why


def test_a_network_card_of_the_matrix_gets_its_facts_from_sysfs(bare_host, use_nvml, use_nvidia_smi) -> None:
    use_nvml(gpus=[{}, {}])
    use_nvidia_smi(say(MATRIX))
    for device in ("mlx5_0", "mlx5_7"):
        port = bare_host / f"sys/class/infiniband/{device}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
    machine = probe_live(bare_host)
    assert [(nic.id, nic.name, nic.kind, nic.bandwidth) for nic in machine.nics] == [
        ("NIC0", "mlx5_0", "infiniband", 25e9),
        ("mlx5_7", "mlx5_7", "infiniband", 25e9),
    ]
    assert "numa of NIC0, mlx5_7" in whys(machine)


def test_a_network_card_that_only_the_matrix_names_has_reasons(bare_host, use_nvml, use_nvidia_smi) -> None:
    use_nvml(gpus=[{}, {}])
    use_nvidia_smi(say(MATRIX))
    assert "link matrix" in whys(probe_live(bare_host))["kind, bandwidth, numa of NIC0"]


def test_the_kernel_tells_the_numa_node_of_a_slot(bare_host, use_nvml, nvml_pci) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetPciInfo": nvml_pci("00000000:3B:00.0")}])
    slot = bare_host / "sys/bus/pci/devices/0000:3b:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("1\n")
    assert probe_live(bare_host).gpus[0].numa == 1


def test_a_host_without_a_gpu_is_described_and_says_what_is_missing(bare_host, use_nvml, nvml_error) -> None:
    use_nvml(system={"nvmlInit": nvml_error(12, "NVML Shared Library Not Found")})
    (bare_host / "proc").mkdir()
    (bare_host / "proc/cpuinfo").write_text("model name\t: AMD EPYC 9654\nflags\t: fpu\n")
    machine = probe_live(bare_host)
    assert (machine.gpus, machine.links, machine.host.cpu) == ((), (), "AMD EPYC 9654")
    assert "libnvidia-ml.so.1" in whys(machine)["gpus"]
    assert "--machine" in whys(machine)["gpus"]


def test_a_driver_that_lists_no_gpu_is_said(bare_host, use_nvml) -> None:
    use_nvml(gpus=[])
    assert "the driver sees none" in whys(probe_live(bare_host))["gpus"]


def test_the_kernel_module_tells_its_version_where_nvml_fails(bare_host, use_nvml, nvml_error) -> None:
    use_nvml(system={"nvmlInit": nvml_error(18, "Driver/library version mismatch")})
    version = bare_host / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:\n"
    )
    machine = probe_live(bare_host)
    assert machine.software.driver == "580.159.04"
    assert "restart" in whys(machine)["software.cuda_driver"]


def test_no_fact_of_the_host_or_the_software_is_missing_without_a_reason(bare_host, use_nvml, nvml_error) -> None:
    use_nvml(system={"nvmlInit": nvml_error(12, "")})
    machine = probe_live(bare_host)
    said = {what for listed in whys(machine) for what in listed.split(", ")}
    for part in ("host", "software"):
        facts = structs.asdict(getattr(machine, part))
        facts = {name: value for name, value in facts.items() if name not in UNSAID}
        assert {f"{part}.{name}" for name, value in facts.items() if value is None} <= said


@pytest.fixture
def one_gpu(bare_host, use_nvml) -> Path:
    use_nvml(gpus=[{}])
    return bare_host


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Unable to determine the device handle for GPU 0000:3B:00.0'; exit 15", "Unable to determine"),
        ("exit 9", "exit code 9"),
        ("echo hello", "nvidia-smi topo -m"),
        ("exec /bin/sleep 60", "no answer within"),
    ],
)
def test_an_nvidia_smi_that_fails_is_a_reason(one_gpu, use_nvidia_smi, monkeypatch, script, why) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.3)
    use_nvidia_smi(script)
    assert why in whys(probe_live(one_gpu))["links"]


def test_an_nvidia_smi_that_is_no_program_is_a_reason(one_gpu, use_nvidia_smi) -> None:
    use_nvidia_smi("")
    (one_gpu / "bin/nvidia-smi").chmod(0o644)
    assert "can't be run" in whys(probe_live(one_gpu))["links"]


def test_a_file_of_nccl_is_told_as_the_origin_of_a_value(bare_host, use_nvml) -> None:
    use_nvml()
    (bare_host / "etc").mkdir()
    (bare_host / "etc/nccl.conf").write_text("NCCL_IB_HCA=mlx5\n")
    machine = probe_live(bare_host)
    assert machine.environment == {"NCCL_IB_HCA": "mlx5"}
    assert machine.environment_files == {"NCCL_IB_HCA": "/etc/nccl.conf"}


def test_this_very_host_has_processors_and_memory() -> None:
    host, _ = read_host()
    assert host.cpus and host.cpus >= 1
    assert host.memory and host.memory_available
    assert host.memory_available <= host.memory


def test_cpu_processes_stand_in_for_gpus_and_share_the_free_memory() -> None:
    machine = Machine(host=Host(cpu="AMD EPYC", memory_available=9_000))
    stand_in = cpu_stand_ins(machine, 3)
    assert [(gpu.id, gpu.index, gpu.name, gpu.memory) for gpu in stand_in.gpus] == [
        ("CPU0", 0, "AMD EPYC", 3_000),
        ("CPU1", 1, "AMD EPYC", 3_000),
        ("CPU2", 2, "AMD EPYC", 3_000),
    ]
    assert len(stand_in.links) == 3
    assert {(link.code, link.kind, link.bandwidth_source) for link in stand_in.links} == {
        ("HOST", "host-memory", "assumed")
    }
    assert stand_in.host == machine.host


def test_one_cpu_process_has_no_link_and_unknown_memory_stays_unknown() -> None:
    stand_in = cpu_stand_ins(Machine(), 1)
    assert (stand_in.links, stand_in.gpus[0].memory) == ((), None)


def test_no_cpu_process_at_all_is_refused() -> None:
    with pytest.raises(AdvisorError):
        cpu_stand_ins(Machine(), 0)
