"""What a plan costs on a machine: memory and step time together, as a `Predicted`."""

from msgspec.structs import replace

from advisor.rules.calibration import Calibration, corrected, scaled
from advisor.rules.decoder import decoder_profile
from advisor.rules.device import Device, device_of
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Collective, Op, collective_seconds, collectives_of
from advisor.rules.job import Job
from advisor.rules.links import host_bandwidth
from advisor.rules.machine import Machine
from advisor.rules.memory import memory_of
from advisor.rules.plan import Memory, Plan, Predicted
from advisor.rules.profile import Precision, Profile
from advisor.rules.step_time import StepTime, Transfers, step_time
from advisor.rules.transport import mesh_speed

ASSUMED_HOST_BANDWIDTH = 12e9  # bytes per second between GPU and host memory: PCIe generation 3 x16, the slowest common

# Bytes per second of Adam on the host's processors, under CPU offload: 23 and 29e9 for each of two ranks with 16 cores
# (two H200, docs/measured.md), and no more than the memory of a socket gives, which its ranks share: 60-150e9, assumed.
HOST_ADAM_PER_RANK, HOST_ADAM_PER_SOCKET = 25e9, 100e9

# Seconds that compute loses for each second of collectives beside it: NCCL's kernels take multiprocessors and memory
# bandwidth, more of them the faster the links. Measured on the 125M GPT.
OVERLAP_NVLINK, OVERLAP_HOST = 0.65, 0.3
NO_TRANSFERS = Transfers(*(lambda _: 0.0,) * 4)


class Costs:
    """Prices plans of one job on one machine; keeps what many plans share: profiles, and collectives of groups."""

    def __init__(self, job: Job, machine: Machine, calibration: Calibration | None = None) -> None:
        self.job, self.machine = job, machine
        self.calibration = calibration or Calibration()
        self._collectives: dict[tuple[tuple[str, ...], int, int], dict[Op, Collective]] = {}
        self._profiles = {profile.precision: profile for profile in job.profiles}

    def profile(self, precision: Precision) -> Profile:
        """Return the traced profile of the job, or that of its formulas. Raises AdvisorError where there is neither."""
        if precision not in self._profiles:
            if self.job.architecture is None:
                known = ", ".join(sorted(self._profiles)) or "no precision"
                raise AdvisorError(f"the model was traced for {known}, not {precision}", "trace it with --model again")
            self._profiles[precision] = decoder_profile(self.job, precision)
        return self._profiles[precision]

    def memory(self, plan: Plan) -> Memory:
        return memory_of(self.job, self.profile(precision_of(plan)), plan, self.machine)

    def predict(self, plan: Plan, memory: Memory) -> Predicted:
        """Predict one optimizer step; `source` is the weakest of what went in: the device, or a link of the plan."""
        device = self._device(plan)
        time = step_time(self.job, self.profile(precision_of(plan)), plan, device, self._transfers(plan))
        used = set(plan.gpus)
        guessed = any(n.bandwidth_source == "assumed" and {n.a, n.b} <= used for n in self.machine.links)
        guessed = guessed and not self.calibration.group(plan.gpus, plan.nodes, 1)
        found = predicted(self.job, plan, memory, time, replace(device, source="assumed") if guessed else device)
        correction = self.calibration.correction
        return found if correction is None or self.calibration.floors else corrected(found, correction)

    def _device(self, plan: Plan) -> Device:
        """Return what computes a plan's steps: under CPU offload the host works as the optimizer."""
        device = self._gpu(plan)
        if not plan.cpu_offload:
            return device
        share = HOST_ADAM_PER_SOCKET * (self.machine.host.sockets or 1) / len(plan.gpus)
        return replace(device, streaming=min(HOST_ADAM_PER_RANK, share))

    def _gpu(self, plan: Plan) -> Device:
        """Return the device as its data sheet has it, or as slow as the measured step without communication was."""
        device = device_of(self.machine, plan.gpus[0], plan.precision)
        floor = self.calibration.floor(plan.samples)
        if floor is None:
            return device
        precision: Precision = "bf16-autocast" if plan.precision == "bf16-params" else precision_of(plan)
        alone = Plan(gpus=plan.gpus[:1], strategy="single", micro_batch=floor.micro_batch, precision=precision)
        sheet = device_of(self.machine, plan.gpus[0], precision)
        modelled = step_time(self.job, self.profile(precision), alone, sheet, NO_TRANSFERS).step
        return scaled(device, floor.seconds / modelled)

    def _transfers(self, plan: Plan) -> Transfers:
        copies = self.calibration.host_copies
        modelled = host_bandwidth(self.machine.gpu(plan.gpus[0])) or ASSUMED_HOST_BANDWIDTH
        bandwidth = modelled if copies is None else copies.bandwidth
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
            overlap=OVERLAP_NVLINK if self._over_nvlink(plan) else OVERLAP_HOST,
        )

    def _over_nvlink(self, plan: Plan) -> bool:
        used = set(plan.gpus)
        links = [link for link in self.machine.links if {link.a, link.b} <= used]
        return bool(links) and all(mesh_speed(self.machine, link, len(plan.gpus)) is not None for link in links)

    def _group(self, gpus: tuple[str, ...], nodes: int, concurrent: int) -> dict[Op, Collective]:
        if measured := self.calibration.group(gpus, nodes, concurrent):
            return measured
        key = (gpus, nodes, concurrent)
        if key not in self._collectives:
            self._collectives[key] = collectives_of(self.machine, gpus, nodes=nodes, concurrent=concurrent)
        return self._collectives[key]


def precision_of(plan: Plan) -> Precision:
    """Return the plan's precision. Raises AdvisorError where it is left to the script: then nothing can be priced."""
    if plan.precision is None:
        raise AdvisorError("this plan leaves the precision to the script, so it has no cost", "give --precision")
    return plan.precision


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
