import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.probe.text.nccl_xml import read_nccl_topology
from advisor.rules.derived_links import with_derived_links
from advisor.rules.errors import AdvisorError
from advisor.rules.links import link_bandwidth
from advisor.rules.machine import Machine, Pcie

FIXTURES = Path(__file__).parents[2] / "fixtures"
VENDORS = sorted((FIXTURES / "topologies").glob("nccl-xml-*.xml"))
VM = (FIXTURES / "captures/2xh200/nccl-topo.xml").read_text()
CLASSES = {"gpu": "0x030200", "switch": "0x068000"}


def read(text: str) -> Machine:
    machine = read_nccl_topology(text, "topo.xml")
    assert machine is not None
    return machine


def system(*cpus: str) -> str:
    return f'<system version="1">\n{"".join(cpus)}\n</system>\n'


def cpu(inside: str, numa: int = 0, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>{inside}</cpu>'


def gpu(address: str, inside: str = "", dev: int | None = None, more: str = 'class="0x030200"') -> str:
    element = "" if dev is None else f'<gpu dev="{dev}" sm="90" rank="{dev}">{inside}</gpu>'
    return f'<pci busid="{address}" {more}>{element}</pci>'


def codes(machine: Machine) -> dict[str, str]:
    return {f"{link.a}-{link.b}": link.code for link in with_derived_links(machine).links}


@pytest.mark.parametrize("file", VENDORS, ids=lambda file: file.stem)
def test_a_vendors_file_is_read_as_its_truth_has_it(file: Path) -> None:
    truth, machine = json.loads(file.with_suffix(".json").read_bytes()), read(file.read_text())
    assert (len(machine.gpus), len(machine.nics)) == (truth["gpus"], truth["nics"])
    assert {g.bus_id: g.numa for g in machine.gpus} == truth["numa"]
    links = [
        [g.bus_id, link.remote, count, CLASSES[link.remote_kind or ""]]
        for g in machine.gpus
        for link, count in Counter(g.nvlinks or ()).items()
    ]
    assert links == truth["nvlinks"]
    masks = {str(node.id): 0 if node.cpus else None for node in machine.numa_nodes}
    for node in machine.numa_nodes:
        for number in node.cpus or ():
            masks[str(node.id)] |= 1 << number
    wanted = {n: mask if mask is None else int(mask.replace(",", ""), 16) for n, mask in truth["affinity_hex"].items()}
    assert masks == wanted


def test_the_dump_of_a_vm_shows_two_gpus_on_a_switch() -> None:
    machine = read(VM)
    first = machine.gpus[0]
    assert [(g.id, g.name, g.compute_capability) for g in machine.gpus] == [
        ("GPU0", "NVIDIA H200", "9.0"),
        ("GPU1", "NVIDIA H200", "9.0"),
    ]
    assert first.nvlinks is not None
    assert len(first.nvlinks) == 18
    assert first.nvlinks[0].remote == "fffffff:ff:ff.0"
    assert (first.numa, first.pcie) == (None, Pcie(generation_max=5))  # NUMA -1 and width 0 mean unknown
    assert [(nic.id, nic.kind, nic.bandwidth) for nic in machine.nics] == [("eth0", "ethernet", 1.25e9)]
    assert codes(machine) == {"GPU0-GPU1": "NV18"}


def test_the_cpus_numbers_tell_what_its_sockets_share() -> None:
    inside = [cpu(gpu(f"000{n}:00:00.0", dev=n), n, 'vendor="GenuineIntel" familyid="6" modelid="143"') for n in (0, 1)]
    machine = read(system(*inside).replace("<pci", '<pci link_speed="16 GT/s" link_width="16"'))
    (link,) = with_derived_links(machine).links
    assert (link.code, link_bandwidth(link, *machine.gpus, machine.host)) == ("SYS", (22e9, "data sheet"))


def test_devices_are_told_by_their_pci_class_where_nothing_else_tells() -> None:
    devices = {"1": "0x030000", "2": "0x030200", "3": "0x020000", "4": "0x020700", "5": "0x068000", "6": "0x060400"}
    inside = "".join(gpu(f"0000:0{n}:00.0", more=f'class="{c}"') for n, c in devices.items())
    machine = read(system(cpu(inside)))
    assert [node.kind for node in machine.pci] == ["host-bridge", "gpu", "gpu", "nic", "nic", "nvswitch", "bridge"]
    assert [(nic.id, nic.kind) for nic in machine.nics] == [("NIC0", None), ("NIC1", "infiniband")]
    assert [g.compute_capability for g in machine.gpus] == [None, None]


def test_gpus_keep_the_numbers_of_the_driver_where_they_are_given() -> None:
    machine = read(system(cpu(gpu("0000:0a:00.0", dev=5) + gpu("0000:0B:00.0", dev=2))))
    assert [(g.id, g.index, g.bus_id) for g in machine.gpus] == [
        ("GPU2", 2, "0000:0b:00.0"),
        ("GPU5", 5, "0000:0a:00.0"),
    ]


def test_gpus_that_all_call_themselves_0_are_counted_by_address() -> None:
    machine = read(system(cpu(gpu("0000:0b:00.0", dev=0) + gpu("0000:0a:00.0", dev=0))))
    assert [(g.id, g.bus_id) for g in machine.gpus] == [("GPU0", "0000:0a:00.0"), ("GPU1", "0000:0b:00.0")]


@pytest.mark.parametrize(
    ("tclass", "target", "code"),
    [
        ("0x030200", "0000:0b:00.0", "NV4"),
        ("0x068000", "0000:c1:00.0", "NV4"),
        ("0x068001", "0004:05:00.1", "PHB"),  # to a Power9 CPU
    ],
)
def test_nvlinks_lead_to_gpus_switches_or_cpus(tclass: str, target: str, code: str) -> None:
    link = f'<nvlink target="{target}" count="4" tclass="{tclass}"/>'
    machine = read(system(cpu(gpu("0000:0a:00.0", link, 0) + gpu("0000:0b:00.0", link.replace("0b:", "0a:"), 1))))
    assert codes(machine) == {"GPU0-GPU1": code}


def test_links_to_several_switches_are_added_up() -> None:
    links = "".join(f'<nvlink target="0000:c{n}:00.0" count="2" tclass="0x068000"/>' for n in range(6))
    assert codes(read(system(cpu(gpu("0000:0a:00.0", links, 0) + gpu("0000:0b:00.0", links, 1))))) == {
        "GPU0-GPU1": "NV12"
    }


def test_links_whose_ends_are_hidden_join_nobody_for_sure() -> None:
    file = FIXTURES / "topologies/nccl-xml-azure-ncv4-a100pcie.xml"
    machine = with_derived_links(read(file.read_text()))
    assert machine.links == ()
    assert [gap.what for gap in machine.unknown] == ["links between GPU0-3"]


def test_a_file_of_pci_classes_says_nothing_of_the_nvlinks_that_its_gpus_have() -> None:
    file = FIXTURES / "topologies/nccl-xml-aws-p4d-comments.xml"
    machine = with_derived_links(read(file.read_text()))
    assert [gap.what for gap in machine.unknown] == ["links between GPU0-7"]
    near = {link.a for link in machine.links if (link.b, link.code) == ("NIC0", "PIX")}
    assert near == {"GPU0", "GPU1"}
    assert not any(link.b.startswith("GPU") for link in machine.links)


def test_a_file_that_names_no_gpu_says_nothing_of_nvlinks_either() -> None:
    machine = with_derived_links(read((FIXTURES / "topologies/nccl-xml-azure-ndv2-v100.xml").read_text()))
    assert [gap.what for gap in machine.unknown] == ["links between GPU0-7"]
    assert "--gpu" in machine.unknown[0].why
    assert {link.b for link in machine.links} == {"NIC0"}


def test_infinity_fabric_of_rccls_dumps_is_read() -> None:
    amd = 'class="0x038000" vendor="0x1002" device="0x74a1"'
    entry = '<xgmi target="0000:{}:00.0" count="1" tclass="0x038000"/>'
    inside = gpu("0000:0a:00.0", entry.format("0b"), 0, amd) + gpu("0000:0b:00.0", entry.format("0a"), 1, amd)
    machine = read(system(cpu(inside)))
    assert [(link.a, link.b, link.code) for link in machine.links] == [("GPU0", "GPU1", "XGMI")]
    assert [(g.name, g.compute_capability) for g in machine.gpus] == [("AMD Instinct MI300X", None)] * 2


NET = '<nic><net name="{}" dev="0" speed="{}" port="{}" guid="{}" maxconn="262144" gdr="1" coll="1"/></nic>'


@pytest.mark.parametrize(
    ("ids", "port", "guid", "kind"),
    [
        ('class="0x020700"', 1, "0x12", "infiniband"),
        ('class="0x020000" vendor="0x15b3"', 1, "0x12", "roce"),
        ('class="0x020000" vendor="0x1d0f" device="0xefa1"', 1, "0x12", "efa"),
        ('class="0x020000"', 0, "0x0", "ethernet"),
    ],
)
def test_a_network_card_is_read_with_its_name_and_rate(ids: str, port: int, guid: str, kind: str) -> None:
    card = gpu("0000:17:00.0", more=ids).replace("></pci>", f">{NET.format('mlx5_3', 200000, port, guid)}</pci>")
    (nic,) = read(system(cpu(card, 1))).nics
    assert (nic.id, nic.name, nic.kind) == ("mlx5_3", "mlx5_3", kind)
    assert (nic.bandwidth, nic.numa, nic.bus_id) == (25e9, 1, "0000:17:00.0")


def test_a_network_card_with_a_speed_of_minus_1_has_no_known_rate() -> None:
    assert read(system(cpu(NET.format("eth0", -1, 0, "0x0")))).nics[0].bandwidth is None


def test_equal_hosts_become_nodes_and_different_ones_are_refused() -> None:
    hosts = [cpu(gpu("0000:0a:00.0", dev=0), more=f'host_hash="0x{n}"') for n in (1, 2, 3)]
    machine = read(system(*hosts))
    assert (machine.nodes, len(machine.gpus)) == (3, 1)
    other = cpu(gpu("0000:0a:00.0", dev=0) + gpu("0000:0b:00.0", dev=1), more='host_hash="0x4"')
    with pytest.raises(AdvisorError, match="2 hosts that differ") as refused:
        read(system(hosts[0], other))
    assert "host_hash" in refused.value.hint


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("user@host:~$ cat topo.xml\n", "\nuser@host:~$"),
        ("Here it is:\n```xml\n", "```\n"),
        ('<?xml version="1.0"?>\n<!DOCTYPE system [<!ENTITY a "aaaa">]>\n<!-- <system> -->\n', ""),
        ("<system>be brief</system>\n", "\nGPU0\tX\n"),
        ("\x1b[32m", "\x1b[0m"),
    ],
)
def test_what_stands_around_the_element_does_no_harm(before: str, after: str) -> None:
    assert read(before + VM + after) == read(VM)


def test_a_second_topology_is_left_out_and_said() -> None:
    machine = read(VM + VM)
    assert len(machine.gpus) == 2
    assert "2 NCCL topologies" in machine.unknown[0].why


@pytest.mark.parametrize(
    "text", ["", "hello", "<system>be brief</system>", "GPU0 X NV4", "<graphs><graph id='0'/></graphs>"]
)
def test_a_text_without_a_topology_is_none(text: str) -> None:
    assert read_nccl_topology(text, "x") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VM[: VM.index("<net")], "ends too early, at line 9"),
        (VM.replace("</gpu>", "", 1), "mismatched tag, at line 7"),
        (VM.partition("\n")[2], "lacks its first line"),
        (VM.replace('dev="0"', 'dev="&a;"', 1), "undefined entity"),
        (system(cpu("<pci>" * 200_000)), "nests more than 64 levels"),
        (system(cpu("<pci>" * 90_000 + "</pci>" * 90_000)), "nests more than 64 levels"),
        (system(cpu("".join(gpu(f"0000:{n:x}:00.0") for n in range(600)))), "600 GPUs"),
    ],
)
def test_a_topology_that_is_cut_broken_or_absurd_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(AdvisorError, match=said) as refused:
        read_nccl_topology(text, "x")
    assert "NCCL_TOPO_DUMP_FILE" in refused.value.hint or "host" in refused.value.hint


PIECES = st.sampled_from(
    [
        '<system version="1">',
        '<cpu numaid="0" affinity="ff,">',
        '<cpu numaid="-9" host_hash="">',
        '<pci busid="0000:0a:00.0" class="0x03" link_speed="x" link_width="-1">',
        '<gpu dev="9" sm="x">',
        '<nvlink target="" count="99999999999" tclass="0x03"/>',
        '<xgmi target="0000:0a:00.0"/>',
        '<net name="a" speed="1e9" port="" guid="z"/>',
        *("<pci>", "<gpu>", "<nic>", "<nvlink/>", "</system>", "</cpu>", "</pci>", "</nic>", "</gpu>"),
        *("&", "<", "\n", "\x00"),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        machine = read_nccl_topology(text, "x")
    except AdvisorError as error:
        assert error.hint
    else:
        assert machine is None or with_derived_links(machine).source == "x"
