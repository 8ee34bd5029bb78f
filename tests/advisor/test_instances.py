"""Machines that have a name."""

import datetime
import subprocess
import sys
import tomllib
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from advisor.cli import main
from advisor.probe.instances import NamedMachine, named_machine, named_machines
from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import fabric_of
from advisor.rules.hardware import gpu_model

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("entry", named_machines(), ids=lambda entry: entry.name)
def test_every_entry_is_a_whole_machine_with_sources(entry: NamedMachine) -> None:
    machine = load_machine(f"2x {entry.name}")
    assert machine.nodes == 2
    assert all(gpu_model(gpu.name or "") is not None for gpu in machine.gpus)
    pairs = {frozenset((link.a, link.b)) for link in machine.links}
    assert pairs == {frozenset((a.id, b.id)) for a, b in combinations(machine.gpus, 2)}
    assert all(link.bandwidth for link in machine.links)
    collectives = fabric_of(machine).collectives
    assert collectives["all_reduce"].bus_bandwidth > 0
    assert "https://" in entry.source or "unverified" in entry.source
    if machine.price is not None:
        assert 0.1 < machine.price.dollars_per_hour < 1000
        assert datetime.date.fromisoformat(machine.price.date) > datetime.date(2026, 1, 1)
        assert machine.price.region
        assert "https://" in machine.price.source


def test_every_cloud_instance_says_its_host() -> None:
    for entry in named_machines():
        machine = named_machine(entry.name)
        assert machine is not None
        if entry.vendor in ("AWS", "Azure", "GCP", "OCI", "Lambda"):
            assert machine.host.cpus and machine.host.memory, entry.name


def test_no_two_machines_share_a_name() -> None:
    content = tomllib.loads((ROOT / "advisor" / "probe" / "instances.toml").read_text())
    for row in content["machine"]:
        for name in (row["name"], *row.get("also", ())):
            machine = named_machine(name)
            assert machine is not None
            assert machine.source == row["name"]


def test_every_price_list_is_used() -> None:
    content = tomllib.loads((ROOT / "advisor" / "probe" / "instances.toml").read_text())
    assert {row["price_list"] for row in content["machine"] if "price" in row} == set(content["price_list"])


@pytest.mark.parametrize(
    ("text", "name", "nodes"),
    [
        ("p4d.24xlarge", "p4d.24xlarge", 1),
        ("P4D.24XLARGE", "p4d.24xlarge", 1),
        ("aws p4d.24xlarge", "p4d.24xlarge", 1),
        ("Standard_ND96asr_v4", "ND96asr_v4", 1),
        ("nd96asr v4", "ND96asr_v4", 1),
        ("azure Standard_ND96asr_v4", "ND96asr_v4", 1),
        ("a3 highgpu 8g", "a3-highgpu-8g", 1),
        ("dgx h100", "DGX H100", 1),
        ("DGX-H100", "DGX H100", 1),
        ("nvidia dgx h100", "DGX H100", 1),
        ("dgx1", "DGX-1", 1),
        ("8x MI300X server", "8x MI300X server", 1),
        ("2x p5.48xlarge", "2 x p5.48xlarge", 2),
        ("2x g4dn.metal", "2 x g4dn.metal", 2),
        ("16 nodes of dgx h100", "16 x DGX H100", 16),
        ("4 dgx spark", "4 x DGX Spark", 4),
    ],
)
def test_a_name_may_be_written_as_people_do(text: str, name: str, nodes: int) -> None:
    machine = load_machine(text)
    assert (machine.source, machine.nodes) == (name, nodes)


def test_a_cloud_instance_has_its_host_networks_and_price() -> None:
    machine = load_machine("p4d.24xlarge")
    assert machine.price is not None
    assert machine.price.region == "us-east-1"
    assert (machine.host.cpus, machine.host.memory, machine.host.virtual) == (96, 1152 * 2**30, True)
    assert [(nic.kind, nic.bandwidth) for nic in machine.nics] == [("efa", 12.5e9)] * 4
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {link.code for link in machine.links} == {"NV12"}


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("p3.8xlarge", ["NV1", "NV1", "NV2", "NV2", "NV1", "NV2"]),  # nvidia-smi topo -m of an instance
        ("NC96ads_A100_v4", ["NV12", "SYS", "SYS", "SYS", "SYS", "NV12"]),  # of 4 bridged A100 on 4 NUMA nodes
        ("DGX Station A100", ["NV4"] * 6),
    ],
)
def test_the_links_are_those_that_such_machines_print(name: str, codes: list[str]) -> None:
    assert [link.code for link in load_machine(name).links] == codes


def test_what_a_description_cannot_say_is_among_the_unknowns() -> None:
    unknown = load_machine("2x p5.48xlarge").unknown
    assert any("32 interfaces of 100 Gb/s" in entry.why for entry in unknown)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("p5.49xlarge", "p5.48xlarge"),
        ("2x p5.49xlarge", "p5.48xlarge"),
        ("dgx h10", "DGX H100"),
        ("nd96asr", "ND96asr_v4"),
    ],
)
def test_an_unknown_name_suggests_near_ones(text: str, near: str) -> None:
    with pytest.raises(AdvisorError, match="no machine is called") as error:
        load_machine(text)
    assert near in error.value.hint
    assert "--machine list" in error.value.hint


@pytest.mark.parametrize("text", ["0x dgx h100", "999999x dgx h100"])
def test_a_number_of_hosts_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(AdvisorError, match="hosts of DGX H100"):
        load_machine(text)


def test_an_endless_name_is_refused_in_one_line() -> None:
    with pytest.raises(AdvisorError) as error:
        load_machine("dgx" * 100_000)
    assert len(error.value.message) < 200


def test_a_file_stands_before_a_machine_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dgx-1").write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    monkeypatch.chdir(tmp_path)
    assert len(load_machine("dgx-1").gpus) == 2


def test_probe_lists_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--machine", "list"]) == 0
    text = capsys.readouterr().out
    assert main(["probe", "--machine", "list", "--json"]) == 0
    listed = msgspec.json.decode(capsys.readouterr().out)
    assert listed["version"] == 1
    assert [machine["name"] for machine in listed["machines"]] == [entry.name for entry in named_machines()]
    assert all(entry.name in text for entry in named_machines())


def test_the_report_shows_the_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--machine", "p4d.24xlarge"]) == 0
    assert "$21.96 an hour on demand, us-east-1, list of 2026-07-20" in capsys.readouterr().out


def test_a_saved_probe_keeps_the_price(tmp_path: Path) -> None:
    saved = str(tmp_path / "machine.json")
    assert main(["probe", "--machine", "p4d.24xlarge", "-o", saved]) == 0
    assert load_machine(saved).price == load_machine("p4d.24xlarge").price


def test_the_page_of_described_machines_is_up_to_date() -> None:
    script = ROOT / "benchmarks" / "described_machines.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs" / "described-machines.md").read_text()
