"""What is to be done and what it should cost: plans, predictions, findings, and the recommendation that holds them."""

from typing import Any, Literal

from msgspec import field

from advisor.rules.errors import AdvisorError
from advisor.rules.job import Job
from advisor.rules.machine import Source, Value
from advisor.rules.profile import Precision

Strategy = Literal["single", "ddp", "fsdp", "hsdp"]
Checkpointing = Literal["none", "full", "selective"]  # selective: every second block, the first one too
Home = Literal["gpu", "cpu"]
Severity = Literal["error", "warning", "info"]


class Launcher(Value, frozen=True, kw_only=True):
    """What torchrun and its processes are given besides the plan's environment."""

    nproc_per_node: int = 1
    device: Literal["cuda", "cpu"] = "cuda"
    threads_per_rank: int | None = None  # OMP_NUM_THREADS; torchrun alone would set 1
    numa_binding: Literal["node"] | None = None


class Plan(Value, frozen=True, kw_only=True):
    """All that the executor and the worker need. `gpus` lists one host's; each of `nodes` hosts uses the same."""

    gpus: tuple[str, ...]
    nodes: int = 1
    strategy: Strategy
    reshard_after_forward: bool = True  # fsdp and hsdp
    shard_size: int = 1  # ranks that share one copy of the model states; 1 is no sharding
    shard_from: Home = "gpu"  # where the whole weights lie while they are sharded; cpu: host memory
    micro_batch: int | None = None  # samples per rank and forward; None leaves the batch to the script
    accumulation: int = 1  # micro-batches per optimizer step
    sync_each_micro_batch: bool = False  # reduce gradients in every micro-batch; False: whole ones are kept to the last
    global_batch: int | None = None  # micro_batch x accumulation x ranks
    precision: Precision | None = None  # None leaves it to the script
    activation_checkpointing: Checkpointing = "none"
    cpu_offload: bool = False
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # on the wire
    bucket_cap_mb: float | None = None  # MiB; None is DDP's own default, 25 with a first bucket of 1
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    env: dict[str, str] = field(default_factory=dict)
    launcher: Launcher = Launcher()

    @property
    def ranks(self) -> int:
        return len(self.gpus) * self.nodes

    @property
    def samples(self) -> int:
        """Samples per rank and forward pass, for the models, which can't do without."""
        if self.micro_batch is None:
            raise AdvisorError("this plan leaves the batch to the script, so it has no cost", "give --global-batch")
        return self.micro_batch


class Memory(Value, frozen=True, kw_only=True):
    """Peak bytes per GPU. `total` is what the driver shows; the parts without `context` are the allocator's peak."""

    total: int
    available: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    communication: int
    context: int
    peak: str = ""  # the moment of the step at which this is reached
    host: int = 0  # bytes of host memory per rank, with CPU offload
    host_available: int | None = None  # bytes, a rank's share; None: not known

    @property
    def fits(self) -> bool:
        """Say whether GPU memory suffices, and host memory as far as it is known."""
        room = self.host_available is None or self.host <= self.host_available
        return self.total <= self.available and room


class Correction(Value, frozen=True, kw_only=True):
    """What earlier runs on a machine say of its predictions: by how much a step took longer than the models had it."""

    factor: float  # median of measured by predicted
    spread: float  # relative, the largest distance of a run from the median
    runs: int
    scripts: int  # different ones among the runs
    since: str  # day of the first of them, 2026-11-30


class Predicted(Value, frozen=True, kw_only=True):
    """Cost of one whole optimizer step under a plan."""

    step_seconds: float
    step_seconds_range: tuple[float, float]
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    samples_per_second: float
    tokens_per_second: float
    memory: Memory
    source: Source
    correction: Correction | None = None  # already in the times; None: they are the models' own


class Candidate(Value, frozen=True, kw_only=True):
    plan: Plan
    predicted: Predicted
    rejected: str | None = None  # the reason, with its number; None for the chosen plan and for ties


class Finding(Value, frozen=True, kw_only=True):
    """One thing worth saying about a machine, a script or a plan. `remedy` is something to type or to change."""

    code: str
    name: str
    severity: Severity
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    remedy: str
    file: str | None = None
    line: int | None = None


class Assumption(Value, frozen=True, kw_only=True):
    what: str
    value: Any
    why: str


class Scale(Value, frozen=True, kw_only=True):
    """The best plan on so many GPUs, at the same global batch."""

    gpus: int  # of each host
    nodes: int
    strategy: Strategy
    step_seconds: float
    samples_per_second: float
    efficiency: float  # samples per second and GPU, against the smallest size that fits
    gain: float | None  # samples per second against the best smaller size, 0.9 is 90 % more; None for the smallest
    dollars_per_million_samples: float | None = None  # None where the machine has no price

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes


class Recommendation(Value, frozen=True, kw_only=True):
    version: int = 1
    verdict: Literal["fits", "does-not-fit"]
    summary: str  # one sentence, with its numbers
    job: Job
    plan: Plan | None
    predicted: Predicted | None
    command: str
    candidates: tuple[Candidate, ...]
    scaling: tuple[Scale, ...] = ()  # the fewest GPUs first
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
