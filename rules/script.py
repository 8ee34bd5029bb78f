"""What rules know of a training script: what its source shows, told by whoever has read it."""

from typing import Any

from msgspec import field

from advisor.rules.machine import Value


class Script(Value, frozen=True, kw_only=True):
    path: str
    kind: str  # plain, ddp, fsdp, accelerate, trainer, lightning, deepspeed, spawn, unknown
    uses: tuple[str, ...] = ()  # full names that it calls or mentions: torch.nn.DataParallel, torch.compile
    ddp_arguments: dict[str, Any] = field(
        default_factory=dict
    )  # constants that its DistributedDataParallel call passes
    lines: dict[str, int] = field(default_factory=dict)  # of `uses`, the first line of each in `path`
