"""Corrections that are one argument of a call."""

import libcst as cst

from advisor.fix.source import Edits, Source, adding, argument
from advisor.rules.plan import Finding

DDP = ("DistributedDataParallel", "DDP")


def map_location(source: Source, finding: Finding, kind: str) -> Edits:
    """Load tensors into host memory; `load_state_dict` then copies them to where the model lies."""
    for call in source.calls_at(finding.line or 0, "load"):
        positional = sum(arg.keyword is None for arg in call.args)
        if argument(call, "map_location") is None and positional == 1 and not _stars(call):
            return {call: [adding("map_location", '"cpu"')]}
    return {}


def bucket_view(source: Source, finding: Finding, kind: str) -> Edits:
    """Let gradients be views of DDP's buckets."""
    line = finding.line or 0
    for call in source.calls_at(line, *DDP) or [c for c in source.calls() if line in source.lines(c)]:
        given = argument(call, "gradient_as_bucket_view")
        if given is not None:
            return {given: [lambda node: node.with_changes(value=cst.Name("True"))]}
        if not _stars(call) and any(source.code(call.func).endswith(name) for name in DDP):
            return {call: [adding("gradient_as_bucket_view", "True")]}
    return {}


def _stars(call: cst.Call) -> bool:
    """Say whether arguments are passed that are not seen."""
    return any(arg.star for arg in call.args)
