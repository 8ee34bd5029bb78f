"""Errors of connections between ranks, as torch, Gloo and NCCL print them, and files of a vendor's topology."""

from pathlib import Path

import pytest

from advisor.probe.live.topology_file import read_topology_file
from advisor.probe.merge import merge
from advisor.probe.text.answers import read_answers
from advisor.probe.text.rendezvous import read_rendezvous
from advisor.rules.network import failed_addresses

FAILED = [
    ("connect() to 172.17.0.1 failed: Connection refused (111)", "172.17.0.1"),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(172.17.0.9, 46229).",
        "172.17.0.9",
    ),
    ("RuntimeError: connect() timed out. Original timeout was 1800000 ms.", None),
    ("[W socket.cpp:601] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111).", None),
    ("RuntimeError: [/gloo/transport/tcp/pair.cc:598] connect [127.0.1.1]:33571: Connection refused", "127.0.1.1"),
    (
        "w3:410:460 [4] misc/socket.cc:28 NCCL WARN socketPollConnect: connect to 10.0.0.4<4321> returned No route to "
        "host, retry",
        "10.0.0.4",
    ),
]


@pytest.mark.parametrize(("line", "address"), FAILED)
def test_a_failed_connection_is_kept_with_its_address(line: str, address: str | None) -> None:
    machine = read_rendezvous(f"step 1\n  {line}\nstep 2\n", "a log")
    assert machine is not None
    assert machine.failed_connections == (line,)
    assert failed_addresses(machine) == ((address,) if address else ())
    assert merge([machine, machine]).failed_connections == (line,)


@pytest.mark.parametrize("line", ["curl: (7) Failed to connect to localhost port 80: Connection refused", "connected"])
def test_other_lines_are_not(line: str) -> None:
    assert read_rendezvous(line, "a log") is None


@pytest.mark.parametrize(
    ("dialogue", "file"),
    [
        ("$ ls /opt/microsoft/ndv5\ntopo.xml\n", "/opt/microsoft/ndv5/topo.xml"),
        ("$ ls /opt/microsoft/*topo*.xml\n/opt/microsoft/ndv4-topo.xml\n", "/opt/microsoft/ndv4-topo.xml"),
        ("$ ls /opt/microsoft\nndv4-topo.xml  ndv5-topo.xml\n", None),
        ("$ ls /var/run/nvidia-topologyd/virtualTopology.xml\nls: cannot access '/v.xml': No such file\n", None),
    ],
)
def test_a_listed_topology_file_is_known_unless_there_are_several(dialogue: str, file: str | None) -> None:
    machine = read_answers(dialogue, "a text")
    assert (machine.host.topology_file if machine else None) == file


def test_a_topology_file_must_list_the_gpus_of_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "opt/microsoft"
    folder.mkdir(parents=True)
    for name, domain in (("ndv4-topo.xml", "0001"), ("ndv5-topo.xml", "0002")):
        gpus = "".join(f'<pci busid="{domain}:0{n}:00.0"/>' for n in range(2))
        (folder / name).write_text(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    here = ["0002:00:00.0", "0002:01:00.0"]
    assert read_topology_file(here, tmp_path) == "/opt/microsoft/ndv5-topo.xml"
    assert read_topology_file(["0003:00:00.0", "0003:01:00.0"], tmp_path) is None
    assert read_topology_file(here[:1], tmp_path) is None
