from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.probe.live.machine import probe_live
from advisor.probe.live.numa_nodes import read_numa_nodes
from advisor.probe.live.pci_tree import read_pci_tree
from advisor.rules.machine import Machine, NumaNode, PciNode

GPU, NVSWITCH, NIC, BRIDGE = (
    ("0x10de", "0x030200"),
    ("0x10de", "0x068000"),
    ("0x15b3", "0x020700"),
    ("0x1000", "0x060400"),
)
SWITCH = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"  # root complex, root port, a switch's port upwards
BELOW = f"{SWITCH}/0000:3c:01.0/0000:3f:00.0"  # a switch below that


@pytest.fixture
def plug(tmp_path: Path) -> Callable[..., None]:
    """Return a function that puts a device, and the bridges on its way, into /sys: path below /sys/devices, kind."""

    def put(
        path: str, ids: tuple[str, str] = GPU, speed: str = "16.0 GT/s PCIe", width: str = "16", numa: int = 0
    ) -> None:
        folder = tmp_path / "sys/devices"
        listed = tmp_path / "sys/bus/pci/devices"
        listed.mkdir(parents=True, exist_ok=True)
        parts = path.split("/")
        for part in parts:
            folder /= part
            known = folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            if part.startswith("pci") or known:
                continue
            vendor, pci_class = ids if part == parts[-1] else BRIDGE
            facts = {"vendor": vendor, "class": pci_class, "numa_node": str(numa)}
            facts |= {"max_link_speed": speed, "max_link_width": width}
            for name, text in facts.items():
                (folder / name).write_text(text + "\n")
            (listed / part).symlink_to(folder)

    return put


def tree(root: Path, *nics: str) -> dict[str, PciNode]:
    return {node.id: node for node in read_pci_tree(dict.fromkeys(nics, "nic"), root)}


def test_a_switch_is_one_node_between_its_devices_and_the_root_complex(tmp_path, plug) -> None:
    plug(f"{SWITCH}/0000:3c:08.0/0000:3d:00.0", numa=1)
    plug(f"{SWITCH}/0000:3c:10.0/0000:3e:00.0", numa=1)
    found = tree(tmp_path)
    assert {node.id: (node.kind, node.parent) for node in found.values()} == {
        "pci0000:3a": ("host-bridge", None),
        "0000:3b:00.0": ("bridge", "pci0000:3a"),
        "0000:3d:00.0": ("gpu", "0000:3b:00.0"),
        "0000:3e:00.0": ("gpu", "0000:3b:00.0"),
    }
    assert {node.numa for node in found.values()} == {1}


def test_switches_below_each_other_stay_apart(tmp_path, plug) -> None:
    plug(f"{BELOW}/0000:40:00.0/0000:41:00.0")
    found = tree(tmp_path)
    assert found["0000:41:00.0"].parent == "0000:3f:00.0"
    assert found["0000:3f:00.0"].parent == "0000:3b:00.0"


def test_devices_on_the_root_bus_and_below_a_root_port_hang_on_the_root_complex(tmp_path, plug) -> None:
    plug("pci0000:00/0000:00:06.0")
    plug("pci0000:00/0000:00:1c.0/0000:02:00.0")
    assert {node.parent for node in tree(tmp_path).values() if node.kind == "gpu"} == {"pci0000:00"}


def test_only_gpus_nvswitches_and_the_named_network_cards_are_listed(tmp_path, plug) -> None:
    plug("pci0000:00/0000:00:01.0", NVSWITCH)
    plug("pci0000:00/0000:00:02.0", NIC)
    plug("pci0000:00/0000:00:03.0", NIC)
    plug("pci0000:00/0000:00:04.0", ("0x1a03", "0x030000"))  # the display of a management controller
    kinds = {node.id: node.kind for node in tree(tmp_path, "0000:00:03.0").values()}
    assert kinds == {"pci0000:00": "host-bridge", "0000:00:01.0": "nvswitch", "0000:00:03.0": "nic"}


@pytest.mark.parametrize(
    ("speed", "width", "bandwidth"),
    [
        ("16.0 GT/s PCIe", "16", 31.5e9),
        ("8 GT/s", "8", 7.88e9),
        ("Unknown", "16", None),
        ("Unknown speed", "255", None),
        ("16.0 GT/s PCIe", "0", None),
    ],
)
def test_a_link_is_as_fast_as_its_generation_and_lanes(tmp_path, plug, speed, width, bandwidth) -> None:
    plug("pci0000:00/0000:00:06.0", speed=speed, width=width)
    found = tree(tmp_path)["0000:00:06.0"].bandwidth
    assert found == (None if bandwidth is None else pytest.approx(bandwidth, rel=0.01))


def test_a_narrow_port_limits_the_device_in_it(tmp_path, plug) -> None:
    plug("pci0000:00/0000:00:1c.0/0000:02:00.0")
    (tmp_path / "sys/devices/pci0000:00/0000:00:1c.0/max_link_width").write_text("4\n")
    assert tree(tmp_path)["0000:02:00.0"].bandwidth == pytest.approx(7.88e9, rel=0.01)


def test_without_sysfs_there_is_no_tree(tmp_path) -> None:
    assert read_pci_tree({}, tmp_path) == ()


def test_numa_nodes_with_processors_are_listed(tmp_path) -> None:
    for node, cpus in (("node0", "0-1,4"), ("node1", ""), ("node10", "8")):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
        (tmp_path / "sys/devices/system/node" / node / "cpulist").write_text(cpus + "\n")
    (tmp_path / "sys/devices/system/node/possible").write_text("0-10\n")
    assert read_numa_nodes(tmp_path) == (NumaNode(id=0, cpus=(0, 1, 4)), NumaNode(id=10, cpus=(8,)))


def codes(machine: Machine) -> dict[str, str]:
    return {f"{link.a}-{link.b}": link.code for link in machine.links}


def test_without_nvidia_smi_the_tree_tells_how_gpus_reach_network_cards(bare_host, plug, use_nvml, nvml_pci) -> None:
    plug(f"{SWITCH}/0000:3c:08.0/0000:3d:00.0")
    plug(f"{SWITCH}/0000:3c:10.0/0000:3e:00.0", NIC)
    plug("pci0000:5a/0000:5a:00.0/0000:5b:00.0", numa=1)
    (bare_host / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (bare_host / "sys/class/infiniband/mlx5_0/device").symlink_to(bare_host / "sys/bus/pci/devices/0000:3e:00.0")
    gpus = [{"nvmlDeviceGetPciInfo": nvml_pci(address)} for address in ("00000000:3D:00.0", "00000000:5B:00.0")]
    use_nvml(gpus=gpus, pairs={(0, 1): 50})
    machine = probe_live(bare_host)
    assert codes(machine) == {"GPU0-GPU1": "SYS", "GPU0-mlx5_0": "PIX", "GPU1-mlx5_0": "SYS"}
    assert [gpu.numa for gpu in machine.gpus] == [0, 1]
    assert machine.nics[0].bus_id == "0000:3e:00.0"
    assert "links to network cards" not in {gap.what for gap in machine.unknown}
