"""From a model as a running script built it to a job, so that a run nobody described can be predicted as well.

Only what the model and its first batch look like goes in, no time and no memory that was measured.
"""

import re
from collections import Counter, defaultdict

from advisor.rules.job import Architecture, Job
from advisor.rules.machine import Value
from advisor.rules.plan import Plan
from advisor.rules.profile import Precision

_INDEXED = re.compile(r"(.*?)\.(\d+)\.(.*)")
HEAD_SIZE = 64  # where it can't be seen; it only matters for shared KV heads

Shape = tuple[int, ...]
_PRECISIONS: dict[str | None, Precision] = {"bfloat16": "bf16-autocast", "float16": "fp16-autocast", None: "fp32"}


class Observed(Value, frozen=True, kw_only=True):
    """A model and its first batch, as the process of one rank saw them."""

    parameters: dict[str, Shape]
    trainable: int  # elements that need a gradient
    inputs: tuple[Shape, ...]  # shapes of the tensors given to the first forward pass
    autocast: str | None = None  # dtype of autocast around it, None: off
    forwards_per_step: int = 1  # forward passes for one optimizer step


def job_of(observed: Observed, ranks: int) -> Job | None:
    """Return the job of a decoder or encoder of equal blocks on batches of tokens; None for any other model."""
    batch = next((shape for shape in observed.inputs if len(shape) == 2), None)
    architecture = architecture_of(observed.parameters)
    if batch is None or architecture is None:
        return None
    micro_batch, seq = batch
    return Job(
        params=sum(_size(shape) for shape in observed.parameters.values()),
        trainable_params=observed.trainable,
        architecture=architecture,
        seq=seq,
        global_batch=micro_batch * observed.forwards_per_step * ranks,
        micro_batch=micro_batch,
    )


def plan_as_run(plan: Plan, job: Job, observed: Observed) -> Plan:
    """Return the plan with the batch and precision that the script used."""
    return Plan(
        **{name: getattr(plan, name) for name in plan.__struct_fields__}
        | {
            "micro_batch": job.micro_batch,
            "accumulation": observed.forwards_per_step,
            "global_batch": job.global_batch,
            "precision": _PRECISIONS.get(observed.autocast, "fp32"),
        }
    )


def architecture_of(parameters: dict[str, Shape]) -> Architecture | None:
    """Find the repeated blocks of a transformer by their shapes, whatever the modules are called.

    The hidden size is the commonest side of a block's matrices; the MLP's matrices are those whose other side comes
    both as input and as output. Outside the blocks the longest table is the vocabulary.
    """
    blocks = _blocks(parameters)
    if blocks is None:
        return None
    layers, block, prefix = blocks
    matrices = [shape for shape in block.values() if len(shape) == 2]
    sides = Counter(side for shape in matrices for side in set(shape))
    if not sides:
        return None
    hidden = max(sides, key=lambda side: (sides[side], -side))
    ups = Counter(rows for rows, columns in matrices if columns == hidden != rows)
    downs = Counter(columns for rows, columns in matrices if rows == hidden != columns)
    widths = [width for width in ups if width in downs]
    outside = [s for name, s in parameters.items() if len(s) == 2 and hidden in s and not name.startswith(prefix)]
    tables = sorted((max(shape) for shape in outside), reverse=True)
    if not widths or not tables:
        return None
    ffn = max(widths)
    heads = max(1, hidden // HEAD_SIZE)
    # Keys and values: two matrices of one width that nothing takes as it is, or what q, k and v in one have beyond q.
    shared = [rows for rows, often in ups.items() if often == 2 and rows < hidden and rows not in downs]
    fused = [(rows - hidden) // 2 for rows in ups if hidden < rows < 3 * hidden and rows not in downs]
    width = next(iter([*shared, *fused]), hidden)
    kv_heads, rest = divmod(heads * width, hidden)
    if rest or not kv_heads or heads % kv_heads:
        kv_heads = heads
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=tables[0],
        gated_mlp=ups[ffn] > 1,
        rmsnorm=not any(name.endswith("bias") for name, shape in block.items() if len(shape) == 1),
        tied_embeddings=tables.count(tables[0]) == 1,
        learned_positions=len(set(tables)) > 1,
    )


def _blocks(parameters: dict[str, Shape]) -> tuple[int, dict[str, Shape], str] | None:
    """Return how often the largest repeated group of parameters comes, one of them by inner name, and their prefix."""
    groups: dict[str, dict[str, dict[str, Shape]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in parameters.items():
        if match := _INDEXED.fullmatch(name):
            groups[match[1]][match[2]][match[3]] = shape
    repeated = [
        (sum(_size(shape) for member in members.values() for shape in member.values()), list(members.values()), prefix)
        for prefix, members in groups.items()
        if len(members) > 1 and all(member == next(iter(members.values())) for member in members.values())
    ]
    if not repeated:
        return None
    _, members, prefix = max(repeated, key=lambda group: group[0])
    return len(members), members[0], f"{prefix}."


def _size(shape: Shape) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
