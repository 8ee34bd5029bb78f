"""NCCL variables are set by the user or the site, and stay as they are.

## What it finds
All variables of NCCL that are set, change something and that no other rule has anything to say about, in one note,
each with the layer that it comes from: the environment, ~/.nccl.conf, the file of NCCL_CONF_FILE or /etc/nccl.conf.

## Why it matters
They are part of what is measured here, and another host or user may not have them. Timeouts, service levels, queue
pairs and rails (NCCL_IB_TIMEOUT, NCCL_IB_TC, NCCL_CROSS_NIC, ...) depend on the network, which its owner knows better
than this program.

## What to do
Nothing. If a file of another person sets them, know that they are there.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, "System configuration"
"""

from collections.abc import Iterator

from advisor.rules.catalog import (
    env102_nccl_variable_without_effect,
    env103_nccl_variable_for_diagnosis,
    env105_nccl_variable_renamed,
    env106_nccl_value_misread,
    env107_nccl_protocol_forced,
    env108_nccl_algorithm_forced,
    env110_pcie_peers_switched_off,
    env111_shared_memory_switched_off,
    env112_rdma_switched_off,
    env113_nccl_adapters_mismatched,
    env114_nccl_log_too_loud,
    env115_nccl_log_file_shared,
    env116_nvls_switched_off,
    env119_nccl_settings_conflict,
    net102_nvlink_switched_off,
)
from advisor.rules.nccl_variables import Setting, settings, variables
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

OTHERS = (
    env102_nccl_variable_without_effect.check,
    env103_nccl_variable_for_diagnosis.check,
    env105_nccl_variable_renamed.check,
    env106_nccl_value_misread.check,
    env107_nccl_protocol_forced.check,
    env108_nccl_algorithm_forced.check,
    env110_pcie_peers_switched_off.check,
    env111_shared_memory_switched_off.check,
    env112_rdma_switched_off.check,
    env113_nccl_adapters_mismatched.check,
    env114_nccl_log_too_loud.check,
    env115_nccl_log_file_shared.check,
    env116_nvls_switched_off.check,
    env119_nccl_settings_conflict.check,
)
QUIET = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE")  # where they are wrong, other rules say so
LONGEST = 40  # of a value


@rule("ENV120", "nccl-variables-kept")
def check(case: Case) -> Iterator[Finding]:
    findings = [finding for other in OTHERS for finding in other.check(case)]
    judged = {name for one in findings for name in (one.facts.get("variable"), *one.facts.get("variables", ()))}
    if any(True for _ in net102_nvlink_switched_off.check.check(case)):
        judged.add("NCCL_P2P_DISABLE")
    kept = [found for found in settings(case.machine) if found.name not in judged and _counts(found)]
    if not kept:
        return
    layers: dict[str, list[Setting]] = {}
    for found in kept:
        layers.setdefault(found.layer, []).append(found)
    listed = "; ".join(f"{', '.join(map(_words, of_layer))} in {layer}" for layer, of_layer in layers.items())
    yield Finding(
        code="ENV120",
        name="nccl-variables-kept",
        severity="info",
        message=f"set by you or the site, and left as they are: {listed}",
        facts={"variables": {found.name: {"value": found.value, "layer": found.layer} for found in kept}},
        remedy="none needed; a plan changes none of them",
    )


def _counts(found: Setting) -> bool:
    row = variables().get(found.name)
    if row is None:
        return bool(found.value)
    return row.policy != "elsewhere" and found.name not in QUIET and not row.changes_nothing(found.value)


def _words(found: Setting) -> str:
    value = found.value if len(found.value) <= LONGEST else f"{found.value[:LONGEST]}..."
    return f"{found.name}={value}"
