"""Where a model lies while it is sharded: on a GPU, as scripts have it, or in host memory, where no GPU can hold it."""

from advisor.rules.job import Job
from advisor.rules.machine import Machine
from advisor.rules.memory import available_bytes
from advisor.rules.plan import Home, Plan


def shard_from(job: Job, plan: Plan, machine: Machine) -> Home:
    """Choose host memory where the whole model exceeds a GPU and the host, as far as it is known, holds the copies."""
    there = host_memory(machine)
    room = there is None or copies_bytes(job, plan, machine) <= there
    return "cpu" if room and exceeds_a_gpu(job, plan, machine) else "gpu"


def exceeds_a_gpu(job: Job, plan: Plan, machine: Machine) -> bool:
    """Say whether a model that is to be sharded is too large to be moved to a GPU whole."""
    if plan.strategy not in ("fsdp", "hsdp") or plan.launcher.device == "cpu" or job.quantize:
        return False
    return whole_bytes(job) > available_bytes(plan, machine)


def whole_bytes(job: Job) -> int:
    """Return the bytes of the model as a script builds it: in fp32. Example: 7e9 parameters: 28e9."""
    return 4 * job.params


def copies_bytes(job: Job, plan: Plan, machine: Machine) -> int:
    """Return the bytes of one copy for each rank of a host. Example: 7e9 parameters in fp32, 8 ranks: 224e9."""
    return copy_width(job, plan, machine) * job.params * len(plan.gpus)


def copy_width(job: Job, plan: Plan, machine: Machine) -> int:
    """Return the bytes per parameter of a copy in host memory: 2, as checkpoints have it, or 4 as it is built."""
    return 4 if job.precision == "fp32" or exceeds_a_gpu(job, plan, machine) else 2


def host_memory(machine: Machine) -> int | None:
    """Return the bytes that a host has for copies; None where it is not known."""
    host = machine.host
    return host.memory if host.memory_available is None else host.memory_available
