import subprocess
import sys
from types import SimpleNamespace

import pytest

from advisor.probe.live import nvml
from advisor.probe.live.gpus import read_driver, read_gpus
from advisor.probe.live.machine import probe_live
from advisor.probe.live.pcie_paths import read_pcie_paths
from advisor.rules.derived_links import with_derived_links
from advisor.rules.machine import Machine, MigInstance, NvLink, Pcie, Process


def test_the_first_query_starts_nvml_and_shutdown_ends_it(use_nvml) -> None:
    fake = use_nvml(system={"nvmlSystemGetDriverVersion": "580.1"})
    assert fake.calls == []
    nvml.query("nvmlSystemGetDriverVersion")
    nvml.query("nvmlSystemGetDriverVersion")
    nvml.shutdown()
    nvml.shutdown()
    assert fake.calls == ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlSystemGetDriverVersion", "nvmlShutdown"]


def test_a_query_after_shutdown_starts_nvml_again(use_nvml) -> None:
    fake = use_nvml(system={"nvmlSystemGetDriverVersion": "580.1"})
    nvml.query("nvmlSystemGetDriverVersion")
    nvml.shutdown()
    assert nvml.query("nvmlSystemGetDriverVersion").value == "580.1"
    assert fake.calls.count("nvmlInit") == 2


def test_bytes_of_older_bindings_become_text(use_nvml) -> None:
    use_nvml(system={"nvmlSystemGetDriverVersion": b"470.57.02"})
    assert nvml.query("nvmlSystemGetDriverVersion") == ("470.57.02", None, False)


def test_what_nvml_does_not_support_is_unknown_with_its_reason(use_nvml) -> None:
    use_nvml()
    assert nvml.query("nvmlSystemGetDriverVersion") == (None, "NVML: Not Supported", True)


def test_a_function_that_the_binding_lacks_is_unknown(use_nvml) -> None:
    use_nvml(system={"absent": ["nvmlDeviceGetNumaNodeId"]})
    value, why, _ = nvml.query("nvmlDeviceGetNumaNodeId", 0)
    assert value is None
    assert "nvidia-ml-py" in why


@pytest.mark.parametrize(
    ("number", "remedy"), [(4, "/dev/nvidiactl"), (9, "modprobe"), (12, "libnvidia-ml"), (18, "restart"), (999, "odd")]
)
def test_a_driver_that_does_not_start_gives_the_reason_to_every_query(use_nvml, nvml_error, number, remedy) -> None:
    fake = use_nvml(system={"nvmlInit": nvml_error(number, "odd")})
    assert remedy in nvml.query("nvmlDeviceGetCount").why
    assert remedy in nvml.query("nvmlSystemGetDriverVersion").why
    assert fake.calls == ["nvmlInit"]


def test_a_missing_binding_is_unknown(use_nvml, monkeypatch) -> None:
    use_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what makes `import` fail
    assert "pip install nvidia-ml-py" in nvml.query("nvmlDeviceGetCount").why


def test_the_session_ends_with_the_process(tmp_path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): print('init')\n"
        "def nvmlShutdown(): print('shutdown')\n"
        "def nvmlDeviceGetCount(): return 0\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from advisor.probe.live.nvml import query; "
    code += "query('nvmlDeviceGetCount'); print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["init", "done", "shutdown"]


def test_the_facts_of_a_captured_h200_are_read(captured_nvml) -> None:
    gpus, unknown = read_gpus()
    assert [gpu.id for gpu in gpus] == ["GPU0", "GPU1"]
    first = gpus[0]
    assert (first.name, first.memory, first.memory_used) == ("NVIDIA H200", 150754820096, 644939776)
    assert (first.compute_capability, first.bus_id) == ("9.0", "0000:00:06.0")
    assert first.pcie == Pcie(generation=5, width=16, generation_max=5, width_max=16)
    assert {u.what for u in unknown} == {f"GPU{i}.{fact}" for i in (0, 1) for fact in ("cpu_affinity", "numa")}


def test_the_driver_and_its_newest_cuda_are_read(captured_nvml) -> None:
    software, unknown = read_driver()
    assert (software.driver, software.cuda_driver) == ("580.159.04", "13.0")
    assert unknown == ()


def test_affinity_masks_become_processor_and_node_numbers(use_nvml) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetCpuAffinity": [0b101, 1], "nvmlDeviceGetMemoryAffinity": [0b10]}])
    gpu = read_gpus()[0][0]
    assert (gpu.cpu_affinity, gpu.numa) == ((0, 2, 64), 1)


def test_memory_of_several_nodes_is_a_list_and_an_empty_mask_unknown(use_nvml) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetCpuAffinity": [0, 0], "nvmlDeviceGetMemoryAffinity": [0b110]}])
    gpus, unknown = read_gpus()
    assert (gpus[0].cpu_affinity, gpus[0].numa) == (None, (1, 2))
    assert "GPU0.cpu_affinity" in {u.what for u in unknown}


def test_a_lost_gpu_is_left_out_and_said(use_nvml, nvml_error) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetHandleByIndex": nvml_error(15, "GPU is lost")}, {"nvmlDeviceGetName": "NVIDIA L4"}])
    gpus, unknown = read_gpus()
    assert [(gpu.id, gpu.name) for gpu in gpus] == [("GPU1", "NVIDIA L4")]
    assert ("GPU0", "left out: NVML: GPU is lost") in {(u.what, u.why) for u in unknown}


def test_a_gpu_cut_into_instances_is_said_with_its_instances(use_nvml) -> None:
    instance = {
        "nvmlDeviceGetUUID": "MIG-77c0",
        "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=20_000, used=1),
        "nvmlDeviceGetGpuInstanceId": 2,
        "nvmlDeviceGetComputeInstanceId": 0,
    }
    use_nvml(gpus=[{"nvmlDeviceGetMigMode": [1, 1], "mig": [instance]}, {"nvmlDeviceGetMigMode": [0, 0]}])
    gpus, unknown = read_gpus()
    part = MigInstance(uuid="MIG-77c0", name="3g.20gb", memory=20_000, gpu_instance=2, compute_instance=0)
    assert [gpu.mig for gpu in gpus] == [(part,), None]
    assert [u.what for u in unknown if "MIG" in u.why] == ["GPU0.MIG instances"]


def links_of_nvml() -> Machine:
    """The links of a machine of which NVML alone tells."""
    gpus, _ = read_gpus()
    links, unknown = read_pcie_paths(gpus)
    return with_derived_links(Machine(gpus=gpus, links=links, unknown=unknown))


def codes(machine: Machine) -> dict[str, str]:
    return {link.a + link.b: link.code for link in machine.links}


def test_nvlinks_through_a_switch_make_a_pair_even_where_a_vm_hides_the_far_end(captured_nvml) -> None:
    machine = links_of_nvml()
    assert [(link.a, link.b, link.code, link.kind) for link in machine.links] == [("GPU0", "GPU1", "NV18", "nvlink")]
    assert machine.unknown == ()


def test_each_nvlink_of_a_captured_h200_is_listed(captured_nvml) -> None:
    links = read_gpus()[0][0].nvlinks
    assert links is not None
    assert [link.number for link in links] == list(range(18))
    hidden = NvLink(number=0, active=True, version=4, remote="FFFFFFFF:FF:FF.0", remote_kind="switch")
    assert links[0] == hidden  # the VM hides the speed


def test_the_speed_of_nvlinks_is_read_by_link_or_on_older_drivers_by_field(use_nvml) -> None:
    state = {"nvmlDeviceGetNvLinkState": (1, 0, 1)}
    new = state | {"fields": {(164, 0): 26562, (164, 2): 26562}}
    old = state | {"fields": {84: 25781, 85: 25781}}
    use_nvml(gpus=[new, old, state])
    speeds = [[link.bandwidth for link in gpu.nvlinks or ()] for gpu in read_gpus()[0]]
    assert speeds == [[26.562e9, None, 26.562e9], [25.781e9, None, 25.781e9], [None, None, None]]


def test_a_gpu_without_nvlink_has_none(use_nvml) -> None:
    use_nvml(gpus=[{}])
    assert read_gpus()[0][0].nvlinks == ()


def bridged(nvml_pci, own: str, *remotes: str, kind: int = 0) -> dict[str, object]:
    """A GPU whose NVLinks lead straight to others."""
    return {
        "nvmlDeviceGetPciInfo": nvml_pci(own),
        "nvmlDeviceGetNvLinkState": (1,) * len(remotes),
        "nvmlDeviceGetNvLinkRemotePciInfo": tuple(nvml_pci(remote) for remote in remotes),
        "nvmlDeviceGetNvLinkRemoteDeviceType": (kind,) * len(remotes),
    }


A, B, C = "00000000:0A:00.0", "00000000:0B:00.0", "00000000:0C:00.0"


def test_direct_nvlinks_are_counted_by_pair_and_the_rest_is_pcie(use_nvml, nvml_pci) -> None:
    use_nvml(
        gpus=[bridged(nvml_pci, A, B, B, C), bridged(nvml_pci, B, A, A), bridged(nvml_pci, C, A)],
        pairs={(1, 2): 50},
    )
    assert codes(links_of_nvml()) == {"GPU0GPU1": "NV2", "GPU0GPU2": "NV1", "GPU1GPU2": "SYS"}


def test_an_inactive_nvlink_does_not_count(use_nvml, nvml_pci) -> None:
    gpus = [bridged(nvml_pci, A, B, B), bridged(nvml_pci, B, A, A)]
    for gpu in gpus:
        gpu["nvmlDeviceGetNvLinkState"] = (0, 0)
    use_nvml(gpus=gpus, pairs={(0, 1): 30})
    assert codes(links_of_nvml()) == {"GPU0GPU1": "PHB"}


def test_a_bridge_whose_far_end_is_hidden_is_unknown_not_pcie(use_nvml, nvml_pci) -> None:
    hidden = "FFFFFFFF:FF:FF.0"
    use_nvml(gpus=[bridged(nvml_pci, A, hidden), bridged(nvml_pci, B, hidden)], pairs={(0, 1): 30})
    machine = links_of_nvml()
    assert machine.links == ()
    assert [u.what for u in machine.unknown] == ["links between GPU0-1"]


@pytest.mark.parametrize(
    ("level", "code"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_pcie_paths_have_the_codes_of_nvidia_smi(use_nvml, level, code) -> None:
    use_nvml(gpus=[{}, {}], pairs={(0, 1): level})
    assert codes(links_of_nvml()) == {"GPU0GPU1": code}


def test_a_pair_of_which_nvml_tells_nothing_has_no_link(use_nvml, nvml_error) -> None:
    use_nvml(gpus=[{}, {}], pairs={(0, 1): nvml_error(999, "Unknown Error")})
    machine = links_of_nvml()
    assert machine.links == ()
    assert machine.unknown[0].why == "NVML: Unknown Error"


def test_memory_that_nvml_does_not_tell_is_unknown_not_zero(use_nvml) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetName": "NVIDIA GB10"}, {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=5, used=1)}])
    gpus, unknown = read_gpus()
    assert [gpu.memory for gpu in gpus] == [None, 5]
    assert ("GPU0.memory", "NVML: Not Supported") in {(u.what, u.why) for u in unknown}


def test_what_is_the_matter_with_a_gpu_is_read(use_nvml, bare_host) -> None:
    busy = {
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetTotalEccErrors": 3,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=5_000)],
        "fabric": 3,
    }
    use_nvml(gpus=[busy], system={"nvmlSystemGetProcessName": b"python"})
    gpu = probe_live(bare_host).gpus[0]
    assert (gpu.ecc, gpu.ecc_uncorrected) == (True, 3)
    assert gpu.throttle == ("SW Power Cap", "HW Thermal Slowdown")  # idling is no fault
    assert gpu.processes == (Process(pid=7, memory=5_000, name="python"),)
    assert gpu.fabric_state == "completed"


def test_older_drivers_call_the_reasons_throttling(use_nvml, bare_host) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetCurrentClocksThrottleReasons": 0x8}])
    assert probe_live(bare_host).gpus[0].throttle == ("HW Slowdown",)


def test_what_most_gpus_lack_is_not_mentioned_but_a_refusal_is(use_nvml, nvml_error, bare_host) -> None:
    use_nvml(gpus=[{}, {"nvmlDeviceGetComputeRunningProcesses": nvml_error(4, "Insufficient Permissions")}])
    machine = probe_live(bare_host)
    words = " ".join(f"{gap.what}: {gap.why}" for gap in machine.unknown)
    assert "processes of GPU1: NVML: Insufficient Permissions" in words
    assert not any(fact in words for fact in ("ecc", "throttle", "fabric", "nvlinks", "mig"))


def test_errors_are_not_counted_where_ecc_is_off(use_nvml, bare_host) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetEccMode": [0, 0], "nvmlDeviceGetTotalEccErrors": 0}])
    gpu = probe_live(bare_host).gpus[0]
    assert (gpu.ecc, gpu.ecc_uncorrected) == (False, None)


def test_peer_access_is_told_in_the_words_of_nvidia_smi(use_nvml, bare_host) -> None:
    use_nvml(gpus=[{}, {}], peers={(0, 1): [0, 1, 2, 3, 4], (1, 0): [5, 6, 99]})
    told = {(p.a, p.b, p.capability): p.status for p in probe_live(bare_host).peer_access}
    assert told == {
        ("GPU0", "GPU1", "read"): "OK",
        ("GPU0", "GPU1", "write"): "CNS",
        ("GPU0", "GPU1", "nvlink"): "GNS",
        ("GPU0", "GPU1", "atomics"): "TNS",
        ("GPU0", "GPU1", "pcie"): "DR",
        ("GPU1", "GPU0", "read"): "NS",
        ("GPU1", "GPU0", "write"): "U",
        ("GPU1", "GPU0", "nvlink"): "U",
    }


def test_a_domain_of_more_than_four_digits_is_kept(use_nvml, nvml_pci) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetPciInfo": nvml_pci("00010000:3B:00.0")}])
    assert read_gpus()[0][0].bus_id == "10000:3b:00.0"
