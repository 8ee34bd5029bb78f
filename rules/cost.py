"""What a plan costs on a machine: memory and step time together, as a `Predicted`."""

from msgspec.structs import replace

from advisor.rules.device import Device, device_of
from advisor.rules.fabric import Collective, Op, collective_seconds, collectives_of
from advisor.rules.job import Job
from advisor.rules.links import host_bandwidth
from advisor.rules.machine import Machine
from advisor.rules.memory import memory_of
from advisor.rules.plan import Memory, Plan, Predicted
from advisor.rules.step_time import StepTime, Transfers, step_time

ASSUMED_HOST_BANDWIDTH = 12e9  # bytes per second between GPU and host memory: PCIe generation 3 x16, the slowest common


class Costs:
    """Prices plans of one job on one machine; keeps the collectives of each group of GPUs, which many plans share."""

    def __init__(self, job: Job, machine: Machine) -> None:
        self.job, self.machine = job, machine
        self._collectives: dict[tuple[tuple[str, ...], int, int], dict[Op, Collective]] = {}

    def memory(self, plan: Plan) -> Memory:
        return memory_of(self.job, plan, self.machine)

    def predict(self, plan: Plan, memory: Memory) -> Predicted:
        """Predict one optimizer step; `source` is the weakest of what went in: the device, or a link of the plan."""
        job = self.job
        device = device_of(self.machine, plan.gpus[0], plan.precision, job.architecture.hidden)
        time = step_time(job, plan, device, self._transfers(plan))
        used = set(plan.gpus)
        guessed = any(n.bandwidth_source == "assumed" and {n.a, n.b} <= used for n in self.machine.links)
        return predicted(job, plan, memory, time, replace(device, source="assumed") if guessed else device)

    def _transfers(self, plan: Plan) -> Transfers:
        bandwidth = host_bandwidth(self.machine.gpu(plan.gpus[0])) or ASSUMED_HOST_BANDWIDTH
        whole = self._group(plan.gpus, plan.nodes, 1)
        inner, outer, replicas = whole, whole, plan.ranks
        if plan.strategy == "hsdp":
            replicas = plan.ranks // plan.shard_size
            per_host = len(plan.gpus)
            if plan.nodes > 1:  # whole hosts share a copy; each GPU reduces with its like on the other hosts
                inner = self._group(plan.gpus, plan.shard_size // per_host, 1)
                outer = self._group(plan.gpus[:1], replicas, per_host)
            else:
                inner = self._group(plan.gpus[: plan.shard_size], 1, 1)
                outer = self._group(plan.gpus[:: plan.shard_size], 1, plan.shard_size)
        shard = plan.shard_size
        return Transfers(
            gather=lambda size: collective_seconds(inner["all_gather"], "all_gather", size, shard),
            scatter=lambda size: collective_seconds(inner["reduce_scatter"], "reduce_scatter", size, shard),
            reduce=lambda size: collective_seconds(outer["all_reduce"], "all_reduce", size, replicas),
            host=lambda size: size / bandwidth,
        )

    def _group(self, gpus: tuple[str, ...], nodes: int, concurrent: int) -> dict[Op, Collective]:
        key = (gpus, nodes, concurrent)
        if key not in self._collectives:
            self._collectives[key] = collectives_of(self.machine, gpus, nodes=nodes, concurrent=concurrent)
        return self._collectives[key]


def predicted(job: Job, plan: Plan, memory: Memory, time: StepTime, device: Device) -> Predicted:
    """Put memory and time together, with throughput and a range of plus and minus the device's uncertainty."""
    uncertainty = device.uncertainty
    samples = plan.samples * plan.accumulation * plan.ranks
    return Predicted(
        step_seconds=time.step,
        step_seconds_range=(time.step * (1 - uncertainty), time.step * (1 + uncertainty)),
        compute_seconds=time.compute,
        communication_seconds=time.communication,
        exposed_communication_seconds=time.exposed,
        samples_per_second=samples / time.step,
        tokens_per_second=samples * job.seq / time.step,
        memory=memory,
        source=device.source,
    )
