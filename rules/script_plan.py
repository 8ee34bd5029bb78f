"""The plan for a script whose job nobody described: all GPUs, the script's own batch and precision."""

from collections.abc import Sequence

from advisor.rules.catalog import RULES
from advisor.rules.machine import Machine
from advisor.rules.plan import Plan
from advisor.rules.recommend import check_group, with_environment
from advisor.rules.rule import Case, Rule, run_rules
from advisor.rules.strategies import Group, launcher_of
from advisor.rules.subsets import gpu_groups


def script_plan(
    machine: Machine, gpus: int | None = None, rules: Sequence[Rule] = RULES, *, shards: bool = False
) -> Plan:
    """Return DDP over all GPUs of one host, or over the best `gpus` of them; one process on one GPU.

    A script that `shards` its model itself has FSDP in the place of DDP. Buckets stay as PyTorch has them: without a
    job there is no timeline to choose a size by.
    """
    check_group(machine, gpus, None)
    everything = tuple(gpu.id for gpu in machine.gpus)
    wanted = gpus or len(everything)
    members = next((group for group in gpu_groups(machine) if len(group) == wanted), everything[:wanted])
    launcher = launcher_of(machine, Group(members, 1))
    if shards and wanted > 1:
        plan = Plan(gpus=members, strategy="fsdp", shard_size=wanted, sync_each_micro_batch=True, launcher=launcher)
    else:
        plan = Plan(gpus=members, strategy="single" if wanted == 1 else "ddp", launcher=launcher)
    return with_environment(plan, run_rules(rules, Case(machine=machine, plan=plan)))
