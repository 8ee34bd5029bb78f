"""Rules on links and networks: the NCCL settings that a plan gets from them, each with its condition."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.catalog import RULES
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Interface, Machine, NcclLog, PeerAccess, Software
from advisor.rules.network import between_hosts, chosen
from advisor.rules.recommend import recommend
from advisor.rules.rule import Case, run_rules

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"


def settings(machine: Machine) -> dict[str, str]:
    found: dict[str, str] = {}
    for finding in run_rules(RULES, Case(machine=machine)):
        if finding.code.startswith("NET"):
            found |= finding.facts.get("env", {})
    return found


def two_hosts(**facts: Any) -> Machine:
    return replace(load_machine("2 hosts of 8x h100 nvswitch"), **facts)


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_a_healthy_machine_gets_no_setting_and_no_warning(path: Path) -> None:
    machine = load_machine(str(path))
    findings = [f for f in run_rules(RULES, Case(machine=machine)) if f.code.startswith("NET")]
    assert settings(machine) == {}
    assert {finding.severity for finding in findings} <= {"info"}


def test_a_plan_for_one_nvswitch_host_sets_nothing_but_the_log_level() -> None:
    architecture, seq = assume_architecture(1.3e9)
    params = 1_300_000_000
    job = Job(params=params, trainable_params=params, architecture=architecture, seq=seq, global_batch=256)
    plan = recommend(job, load_machine(str(MACHINES / "8xh100-nvswitch.json"))).plan
    assert plan is not None
    assert {name for name in plan.env if name.startswith("NCCL")} == {"NCCL_DEBUG"}


def test_peer_access_is_switched_off_only_with_drivers_that_hung() -> None:
    cards = load_machine("4x 4090 pcie4")
    allowed = (PeerAccess(a="GPU0", b="GPU1", capability="read", status="OK"),)

    def with_driver(driver: str | None, **facts: Any) -> dict[str, str]:
        return settings(replace(cards, peer_access=allowed, software=Software(driver=driver), **facts))

    assert with_driver("530.30.02") == with_driver("560.35.03") == {"NCCL_P2P_DISABLE": "1"}
    assert with_driver("570.86.15") == with_driver(None) == {}
    assert with_driver(None, nccl_log=NcclLog(transports={"P2P/IPC": 2})) == {"NCCL_P2P_DISABLE": "1"}
    assert with_driver("530.30.02", environment={"NCCL_P2P_DISABLE": "0"}) == {}


def test_interfaces_are_excluded_only_after_a_failed_start() -> None:
    interfaces = (
        Interface(name="lo", kind="loopback", up=True, addresses=("127.0.0.1/8",)),
        Interface(name="docker0", kind="bridge", up=True, addresses=("172.17.0.1/16",)),
        Interface(name="enp159s0", kind="ethernet", up=True, addresses=("10.20.0.6/20",)),
    )
    machine = two_hosts(interfaces=interfaces)
    assert settings(machine) == {}
    refused = NcclLog(warnings=("connect() to 172.17.0.1 failed: Connection refused (111)",))
    expected = {"NCCL_SOCKET_IFNAME": "^docker0,lo", "GLOO_SOCKET_IFNAME": "enp159s0"}
    assert settings(replace(machine, nccl_log=refused)) == expected
    assert settings(replace(machine, nccl_log=NcclLog(interface="docker0"))) == expected
    assert settings(replace(machine, nccl_log=refused, environment={"NCCL_SOCKET_IFNAME": "enp"})) == {}
    assert settings(replace(machine, nccl_log=refused, nodes=1)) == {}
    assert [interface.name for interface in between_hosts(machine)] == ["enp159s0"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("2 hosts of 2x a100 pcie4, eth 100, 32 cores", {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}),
        ("2 hosts of 2x a100 pcie4, eth 100, 8 cores", {}),
        ("2 hosts of 2x a100 pcie4, eth 100", {}),  # how many cores is not known
        ("2 hosts of 2x a100 pcie4, eth 25, 32 cores", {}),
        ("2 hosts of 2x a100 pcie4, ib 100, 32 cores", {}),
        ("2x a100 pcie4, eth 100, 32 cores", {}),
    ],
)
def test_socket_threads_need_sockets_a_fast_adapter_and_spare_cores(words: str, expected: dict[str, str]) -> None:
    assert settings(load_machine(words)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eth", ("eth0", "eth1")),
        ("=eth0", ("eth0",)),
        ("^docker0", ("lo", "eth0", "eth1")),
        ("^=lo,eth1", ("docker0", "eth0")),
        ("ib,eth1", ("eth1",)),
        ("", ()),
    ],
)
def test_names_are_matched_as_nccl_does(value: str, expected: tuple[str, ...]) -> None:
    assert chosen(value, ("lo", "docker0", "eth0", "eth1")) == expected


def test_no_rule_raises_on_missing_facts() -> None:
    """A rule sees machines of which almost nothing is known, and every fact of every case alone."""
    cases = (Path(__file__).parents[2] / "fixtures" / "rules").glob("NET*/*.toml")
    names = {name for path in cases for name in tomllib.loads(path.read_text()).get("facts", {})}
    assert names
    for machine in (Machine(), Machine(nodes=2), two_hosts(gpus=(), nccl_log=NcclLog())):
        assert all(finding.message for finding in run_rules(RULES, Case(machine=machine)))
