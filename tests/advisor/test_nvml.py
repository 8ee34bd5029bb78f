import subprocess
import sys
from types import SimpleNamespace

import pytest

from advisor.probe.live import nvml
from advisor.probe.live.gpus import read_driver, read_gpus
from advisor.probe.live.nvml_links import read_links
from advisor.rules.machine import Pcie


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
    assert nvml.query("nvmlSystemGetDriverVersion") == ("470.57.02", None)


def test_what_nvml_does_not_support_is_unknown_with_its_reason(use_nvml) -> None:
    use_nvml()
    assert nvml.query("nvmlSystemGetDriverVersion") == (None, "NVML: Not Supported")


def test_a_function_that_the_binding_lacks_is_unknown(use_nvml) -> None:
    use_nvml(system={"absent": ["nvmlDeviceGetNumaNodeId"]})
    value, why = nvml.query("nvmlDeviceGetNumaNodeId", 0)
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


def test_a_gpu_cut_into_instances_is_said(use_nvml) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetMigMode": [1, 1]}, {"nvmlDeviceGetMigMode": [0, 0]}])
    said = [u.what for u in read_gpus()[1] if "MIG" in u.why]
    assert said == ["GPU0.MIG instances"]


def test_nvlinks_through_a_switch_make_a_pair_even_where_a_vm_hides_the_far_end(captured_nvml) -> None:
    links, unknown = read_links(read_gpus()[0])
    assert [(link.a, link.b, link.code, link.kind) for link in links] == [("GPU0", "GPU1", "NV18", "nvlink")]
    assert unknown == ()


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
    links, _ = read_links(read_gpus()[0])
    assert [(link.a, link.b, link.code) for link in links] == [
        ("GPU0", "GPU1", "NV2"),
        ("GPU0", "GPU2", "NV1"),
        ("GPU1", "GPU2", "SYS"),
    ]


def test_an_inactive_nvlink_does_not_count(use_nvml, nvml_pci) -> None:
    gpus = [bridged(nvml_pci, A, B, B), bridged(nvml_pci, B, A, A)]
    for gpu in gpus:
        gpu["nvmlDeviceGetNvLinkState"] = (0, 0)
    use_nvml(gpus=gpus, pairs={(0, 1): 30})
    assert [link.code for link in read_links(read_gpus()[0])[0]] == ["PHB"]


def test_a_bridge_whose_far_end_is_hidden_is_unknown_not_pcie(use_nvml, nvml_pci) -> None:
    hidden = "FFFFFFFF:FF:FF.0"
    use_nvml(gpus=[bridged(nvml_pci, A, hidden), bridged(nvml_pci, B, hidden)], pairs={(0, 1): 30})
    links, unknown = read_links(read_gpus()[0])
    assert links == ()
    assert [u.what for u in unknown] == ["link GPU0-GPU1"]


@pytest.mark.parametrize(
    ("level", "code"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_pcie_paths_have_the_codes_of_nvidia_smi(use_nvml, level, code) -> None:
    use_nvml(gpus=[{}, {}], pairs={(0, 1): level})
    assert [link.code for link in read_links(read_gpus()[0])[0]] == [code]


def test_a_pair_of_which_nvml_tells_nothing_has_no_link(use_nvml, nvml_error) -> None:
    use_nvml(gpus=[{}, {}], pairs={(0, 1): nvml_error(999, "Unknown Error")})
    links, unknown = read_links(read_gpus()[0])
    assert links == ()
    assert unknown[0].why == "NVML: Unknown Error"


def test_memory_that_nvml_does_not_tell_is_unknown_not_zero(use_nvml) -> None:
    use_nvml(gpus=[{"nvmlDeviceGetName": "NVIDIA GB10"}, {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=5, used=1)}])
    gpus, unknown = read_gpus()
    assert [gpu.memory for gpu in gpus] == [None, 5]
    assert ("GPU0.memory", "NVML: Not Supported") in {(u.what, u.why) for u in unknown}
