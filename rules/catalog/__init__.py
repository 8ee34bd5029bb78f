"""All rules, one file each. To add one: its file, its line here, and two cases under fixtures/rules/CODE/."""

from advisor.rules.catalog import (
    env101_nccl_debug_unset,
    env102_nccl_variable_without_effect,
    env103_nccl_variable_for_diagnosis,
    env104_sources_contradict,
    mem101_states_exceed_memory,
    mem102_logits_are_the_peak,
    net101_ring_leaves_the_islands,
    net102_nvlink_switched_off,
    par101_more_gpus_do_not_help,
)
from advisor.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    env101_nccl_debug_unset.check,
    env102_nccl_variable_without_effect.check,
    env103_nccl_variable_for_diagnosis.check,
    env104_sources_contradict.check,
    mem101_states_exceed_memory.check,
    mem102_logits_are_the_peak.check,
    net101_ring_leaves_the_islands.check,
    net102_nvlink_switched_off.check,
    par101_more_gpus_do_not_help.check,
)
