from pathlib import Path
from types import SimpleNamespace

import pytest

from advisor.probe.live.machine import probe_live
from advisor.rules.machine import Machine


def whys(machine: Machine) -> dict[str, str]:
    return {gap.what: gap.why for gap in machine.unknown}


@pytest.fixture
def three_gpus(bare_host, use_nvml, nvml_pci) -> Path:
    gpus = [
        {
            "nvmlDeviceGetName": "NVIDIA L4" if i else "Tesla T4",
            "nvmlDeviceGetUUID": f"GPU-{i}a{i}b-77",
            "nvmlDeviceGetPciInfo": nvml_pci(f"00000000:0{i}:00.0"),
        }
        for i in range(3)
    ]
    use_nvml(gpus=gpus, pairs={(0, 1): 10, (0, 2): 50, (1, 2): 50})
    return bare_host


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        ("1", ["GPU1"]),
        ("2,0", ["GPU2", "GPU0"]),
        (" 0 , 1 ", ["GPU0", "GPU1"]),
        ("GPU-1a", ["GPU1"]),
        ("GPU-2a2b-77,GPU-0a0b-77", ["GPU2", "GPU0"]),
        ("0,7,1", ["GPU0"]),
        ("1,1,0", ["GPU1"]),
        ("GPU-", []),
        ("-1", []),
        ("", []),
        ("0,1,2", ["GPU0", "GPU1", "GPU2"]),
    ],
)
def test_only_visible_gpus_are_listed_in_the_order_of_cuda(three_gpus, monkeypatch, listed, shown) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    machine = probe_live(three_gpus)
    assert [gpu.id for gpu in machine.gpus] == shown
    assert {end for link in machine.links for end in (link.a, link.b)} <= set(shown)
    assert not any(f"GPU{i}" in what for i in range(3) if f"GPU{i}" not in shown for what in whys(machine))
    hidden = 3 - len(shown)
    assert any(f"{hidden} more GPU" in what for what in whys(machine)) == (hidden > 0)


def test_mixed_gpus_chosen_by_number_need_a_fixed_order(three_gpus, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in why for why in whys(probe_live(three_gpus)).values())
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert not any("CUDA_DEVICE_ORDER" in why for why in whys(probe_live(three_gpus)).values())


def part(gpu: int, number: int) -> dict[str, object]:
    return {
        "nvmlDeviceGetUUID": f"MIG-{gpu}{number}77-aa",
        "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=20_000, used=0),
        "nvmlDeviceGetGpuInstanceId": number + 1,
        "nvmlDeviceGetComputeInstanceId": 0,
    }


@pytest.fixture
def cut_gpus(bare_host, use_nvml, nvml_pci) -> Path:
    """Two A100, each cut into two instances, on one NVSwitch and one host bridge."""
    gpus = [
        {
            "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB",
            "nvmlDeviceGetUUID": f"GPU-{i}aa",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40_000, used=0),
            "nvmlDeviceGetPciInfo": nvml_pci(f"00000000:00:0{i + 1}.0"),
            "nvmlDeviceGetNvLinkState": (1,) * 12,
            "nvmlDeviceGetNvLinkRemoteDeviceType": (2,) * 12,
            "nvmlDeviceGetMigMode": [1, 1],
            "mig": [part(i, 0), part(i, 1)],
        }
        for i in range(2)
    ]
    use_nvml(gpus=gpus, peers={(0, 1): [0], (1, 0): [0]})
    for i in range(2):
        device = bare_host / f"sys/devices/pci0000:00/0000:00:0{i + 1}.0"
        device.mkdir(parents=True)
        (bare_host / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (bare_host / "sys/bus/pci/devices" / device.name).symlink_to(device)
    return bare_host


@pytest.mark.parametrize("listed", ["MIG-0077-aa", "MIG-007", "MIG-GPU-0aa/1/0"])
def test_a_mig_instance_stands_as_its_gpu(cut_gpus, monkeypatch, listed) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    machine = probe_live(cut_gpus)
    (gpu,) = machine.gpus
    assert (gpu.id, gpu.index, gpu.uuid, gpu.memory) == ("GPU0", 0, "MIG-0077-aa", 20_000)
    assert gpu.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert "1 more GPU(s)" in whys(machine)
    assert not any("MIG is on" in why for why in whys(machine).values())


def test_instances_of_two_gpus_reach_each_other_over_pcie_only(cut_gpus, monkeypatch) -> None:
    assert [link.code for link in probe_live(cut_gpus).links] == ["NV12"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1077-aa,MIG-0177-aa")
    machine = probe_live(cut_gpus)
    assert [(gpu.id, gpu.uuid) for gpu in machine.gpus] == [("GPU1", "MIG-1077-aa"), ("GPU0", "MIG-0177-aa")]
    assert [(link.a, link.b, link.code) for link in machine.links] == [("GPU1", "GPU0", "PHB")]
    assert machine.peer_access == ()


def test_only_the_first_of_several_instances_of_one_gpu_is_listed(cut_gpus, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0077-aa,MIG-0177-aa")
    machine = probe_live(cut_gpus)
    assert [gpu.uuid for gpu in machine.gpus] == ["MIG-0077-aa"]
    assert "NCCL joins no two" in whys(machine)["1 more MIG instance(s)"]


@pytest.mark.parametrize("listed", ["MIG-", "MIG-0", "MIG-GPU-0aa/7/0", "MIG-99"])
def test_an_instance_that_is_not_there_or_not_the_only_one_shows_nothing(cut_gpus, monkeypatch, listed) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert probe_live(cut_gpus).gpus == ()


def know_gpus(root: Path, count: int) -> None:
    for i in range(count):
        (root / f"proc/driver/nvidia/gpus/0000:0{i}:00.0").mkdir(parents=True)


def test_a_container_that_shows_3_of_8_gpus_says_so(three_gpus, monkeypatch) -> None:
    know_gpus(three_gpus, 8)
    (three_gpus / ".dockerenv").touch()
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1,2")
    machine = probe_live(three_gpus)
    assert whys(machine)["5 more GPU(s)"] == "this container was not given them: NVIDIA_VISIBLE_DEVICES=0,1,2"


def test_a_gpu_that_the_kernel_knows_and_nvml_does_not_list_is_said(three_gpus) -> None:
    know_gpus(three_gpus, 3)
    assert not any("more GPU" in what for what in whys(probe_live(three_gpus)))
    (three_gpus / "proc/driver/nvidia/gpus/0000:0f:00.0").mkdir()
    assert "0000:0f:00.0" in whys(probe_live(three_gpus))["1 more GPU(s)"]
