"""NCCL variables that are set together do not go together.

## What it finds
NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD above 64, or more than 16 threads; NCCL_MIN_CTAS above NCCL_MAX_CTAS,
also by their old names.

## Why it matters
NCCL cuts such values without an error: of the sockets to 64 for each connection, and with a minimum above the maximum
one of the two counts for nothing. What was measured with one pair is then not what runs.

## What to do
Set both so that they fit, or unset both. Over TCP on adapters of 100 Gb/s and more, 4 threads with 4 sockets each
made a DDP step of a 1.4B GPT 2.8 times faster (two H200, loopback).

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nsocks-perthread; docs/models.md
"""

from collections.abc import Iterator
from itertools import product

from advisor.rules.machine import Machine
from advisor.rules.nccl_variables import number_of, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SOCKETS, THREADS = 64, 16
LEAST = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
MOST = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")


@rule("ENV119", "nccl-settings-conflict")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    threads = number_of(machine, "NCCL_SOCKET_NTHREADS") or 1
    each = number_of(machine, "NCCL_NSOCKS_PERTHREAD") or 1
    if threads * each > SOCKETS or threads > THREADS:
        names = [name for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD") if setting(machine, name)]
        yield _finding(
            machine,
            names,
            f"{threads} threads x {each} sockets = {threads * each}; NCCL takes {SOCKETS}, and {THREADS} threads",
            "export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
        )
    for low, high in product(LEAST, MOST):
        least, most = number_of(machine, low) or 0, number_of(machine, high) or 0
        if least > most > 0:
            why = f"the least number of channels, {least}, is above the most, {most}"
            yield _finding(machine, [low, high], why, "unset both; NCCL chooses by the machine")


def _finding(machine: Machine, names: list[str], why: str, remedy: str) -> Finding:
    found = [one for name in names if (one := setting(machine, name))]
    return Finding(
        code="ENV119",
        name="nccl-settings-conflict",
        severity="info",
        message=f"{', '.join(one.words for one in found)}: {why}",
        facts={"variables": {one.name: one.value for one in found}},
        remedy=remedy,
    )
