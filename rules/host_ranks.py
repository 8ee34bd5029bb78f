"""How many ranks one host runs, and on which GPUs: the plan's, or without a plan one rank for each GPU."""

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.machine import Gpu
from advisor.rules.rule import Case


def gpus_of(case: Case) -> tuple[Gpu, ...]:
    """Return the GPUs that one host's ranks run on; CPU processes that stand in for GPUs are none."""
    chosen = None if case.plan is None else set(case.plan.gpus)
    return tuple(gpu for gpu in case.machine.gpus if not is_cpu(gpu) and (chosen is None or gpu.id in chosen))


def ranks_per_host(case: Case) -> int:
    return len(case.machine.gpus) if case.plan is None else len(case.plan.gpus)


def ranks(case: Case) -> int:
    """Count the ranks of all hosts."""
    return ranks_per_host(case) * (case.machine.nodes if case.plan is None else case.plan.nodes)


def works_on_processors(case: Case) -> bool:
    """Say whether the plan computes on the host's processors: all of it, or the optimizer under CPU offload."""
    return case.plan is not None and (case.plan.launcher.device == "cpu" or case.plan.cpu_offload)
