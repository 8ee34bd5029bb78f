"""What one micro-batch of a model costs on one rank before anything is known of the machine: its parts and its memory.

A profile comes from tracing a real model (`advisor.trace`) or from the formulas of a transformer (`rules.decoder`).
Every amount is a line in the micro-batch: a fixed part and one for each sample. Unsharded, without communication.
"""

from collections.abc import Iterable
from typing import Literal

from advisor.rules.machine import Value

Precision = Literal["bf16-autocast", "bf16-params", "fp16-autocast", "fp32"]


class Amount(Value, frozen=True, kw_only=True):
    fixed: float = 0.0
    per_sample: float = 0.0

    def at(self, samples: float) -> float:
        return self.fixed + self.per_sample * samples


class Kernels(Value, frozen=True, kw_only=True):
    """What a part of the model launches in one direction, forward or backward."""

    matmul: Amount = Amount()  # FLOP of matrix products
    attention: Amount = Amount()  # FLOP of fused attention, of the scores that its mask leaves
    convolution: Amount = Amount()  # FLOP
    batch_norm: Amount = Amount()  # bytes that batch normalisation reads and writes
    traffic: Amount = Amount()  # bytes that the other kernels read and write
    launches: int = 0


class Unit(Value, frozen=True, kw_only=True):
    """`count` equal parts of a model in a row: blocks, or what stands before, between or behind them."""

    name: str
    kind: Literal["block", "root"]  # FSDP wraps each block; the root keeps the rest
    count: int = 1
    params: int  # of one
    trainable: int
    tensors: int  # parameter tensors of one
    forward: Kernels
    backward: Kernels
    kept: Amount  # bytes of one that stay for the backward pass
    entry: Amount  # bytes that enter one, which are all that checkpointing keeps


class Moment(Value, frozen=True, kw_only=True):
    """The most that is live at one time of a micro-batch, without parameters and gradients."""

    name: str
    live: Amount  # bytes
    ready: int  # trainable parameters whose gradients are whole by then
    kept: int  # parts of `Profile.units`, each counted, whose kept bytes are live then: those that stand before it


class Profile(Value, frozen=True, kw_only=True):
    """A model at one precision. `units` stand in the order of the forward pass, `moments` in that of time."""

    precision: Precision
    units: tuple[Unit, ...]
    moments: tuple[Moment, ...]
    largest: Amount  # bytes of the largest single tensor
    logits: Amount = Amount()  # bytes of logits and their gradients inside the loss, a part of what is live then
    seq: int | None = None  # tokens of a sample; None where samples are no sequences
    source: Literal["traced", "formula"]

    @property
    def params(self) -> int:
        return sum(unit.count * unit.params for unit in self.units)

    @property
    def trainable(self) -> int:
        return sum(unit.count * unit.trainable for unit in self.units)


def line(sizes: Iterable[tuple[float, float]]) -> Amount:
    """Return the line through two points (samples, amount)."""
    (one, low), (two, high) = sizes
    slope = (high - low) / (two - one)
    return Amount(fixed=low - slope * one, per_sample=slope)
