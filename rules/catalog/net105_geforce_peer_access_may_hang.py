"""GeForce cards advertise peer access that may hang.

## What it finds
GeForce cards of the 40 and 50 series for which the driver, or NCCL's log, says that peer-to-peer works.

## Why it matters
Stock drivers offer no PCIe peer-to-peer on these cards. Drivers 525 to 569 advertised it on RTX 4090 all the same:
NCCL starts, then all GPUs show 99 % utilization and nothing moves, or the data is wrong. Users saw the hang with 525,
530 and 560, and none with 570. Utilization says nothing here: a waiting kernel counts as busy.

## What to do
Update the driver. Until then the plan sets NCCL_P2P_DISABLE=1 where the driver is one of those, or is not known and
NCCL's log says P2P: traffic then goes through host memory, at the speed that the finding names. A driver patched for
peer-to-peer is not judged: test it with a time limit.

## Source
https://github.com/NVIDIA/nccl-tests/issues/117, https://github.com/dmlc/xgboost/issues/11242
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.format import bandwidth, ids
from advisor.rules.machine import Gpu, Machine
from advisor.rules.network import unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links
from advisor.rules.transport import capability_of, hop_speed, peer_to_peer

FIRST_BAD, FIRST_GOOD = 525, 570  # driver branches
SWITCH = "NCCL_P2P_DISABLE"


@rule("NET105", "geforce-peer-access-may-hang")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    cards = [gpu for gpu in machine.gpus if _is_geforce(gpu)]
    if len(cards) < 2 or not peer_to_peer(machine) or not _advertised(machine, cards):
        return
    driver = machine.software.driver
    branch = (driver or "").partition(".")[0]
    ada = _generation(cards[0]) == (8, 9)
    known_bad = ada and branch.isdecimal() and FIRST_BAD <= int(branch) < FIRST_GOOD
    bad = known_bad or (ada and driver is None and _used(machine))
    what = "says that it uses" if _used(machine) else "could use"
    why = f"driver {driver} is one of" if known_bad else "the driver is not known, and it hung with"
    test = f"timeout 60 all_reduce_perf -b 1M -e 64M -g {len(machine.gpus)}"
    yield Finding(
        code="NET105",
        name="geforce-peer-access-may-hang",
        severity="warning" if bad else "info",
        message=(
            f"NCCL {what} peer access between {ids([gpu.id for gpu in cards])} ({cards[0].name}), which stock drivers "
            "do not support; "
            + (f"{why} {FIRST_BAD} to {FIRST_GOOD - 1}{_cost(machine)}" if bad else f"driver {driver or 'unknown'}")
        ),
        facts={"driver": driver, "gpus": len(cards)} | ({"env": unset(machine, {SWITCH: "1"})} if bad else {}),
        remedy=(
            f"update the driver to {FIRST_GOOD} or newer; until then the plan sets {SWITCH}=1; "
            f"{test} shows whether it hangs"
            if bad
            else f"test it before a long run: {test}; if it hangs, export {SWITCH}=1 and update the driver"
        ),
    )


def _is_geforce(gpu: Gpu) -> bool:
    return "geforce" in (gpu.name or "").lower() and _generation(gpu) >= (8, 9)


def _generation(gpu: Gpu) -> tuple[int, ...]:
    return tuple(int(part) for part in (capability_of(gpu) or "0.0").split(".") if part.isdecimal())


def _advertised(machine: Machine, cards: list[Gpu]) -> bool:
    names = {gpu.id for gpu in cards}
    said = any(p.capability == "read" and p.status == "OK" and {p.a, p.b} <= names for p in machine.peer_access)
    return said or _used(machine)


def _used(machine: Machine) -> bool:
    return machine.nccl_log is not None and any(way.startswith("P2P") for way in machine.nccl_log.transports)


def _cost(machine: Machine) -> str:
    """Say what a hop moves through host memory, at the slowest link."""
    without = replace(machine, environment=machine.environment | {SWITCH: "1"})
    gpus = [gpu.id for gpu in machine.gpus]
    speeds = [hop_speed(without, link, gpus=gpus, concurrent=1) for link in gpu_links(machine).values()]
    known = [speed for speed in speeds if speed is not None]
    return f"; without it a hop moves about {bandwidth(min(known))}, through host memory" if known else ""
