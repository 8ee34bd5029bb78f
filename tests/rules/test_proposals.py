from collections.abc import Callable

import pytest
from msgspec.structs import replace

from advisor.rules.machine import Machine
from advisor.rules.observed import Observed
from advisor.rules.plan import Plan
from advisor.rules.proposals import HALF_WEIGHTS, costs_of, proposals, same_run
from advisor.rules.script_plan import script_plan

Machines = Callable[..., Machine]

HIDDEN, VOCAB, LAYERS = 1024, 32_000, 12
BLOCK = {
    "attention.qkv.weight": (3 * HIDDEN, HIDDEN),
    "attention.out.weight": (HIDDEN, HIDDEN),
    "mlp.up.weight": (4 * HIDDEN, HIDDEN),
    "mlp.down.weight": (HIDDEN, 4 * HIDDEN),
    "norm.weight": (HIDDEN,),
    "norm.bias": (HIDDEN,),
}
PARAMETERS = {f"blocks.{i}.{name}": shape for i in range(LAYERS) for name, shape in BLOCK.items()}
PARAMETERS |= {"embedding.weight": (VOCAB, HIDDEN), "head.weight": (VOCAB, HIDDEN)}
SEEN = Observed(
    parameters=PARAMETERS, trainable=220_000_000, inputs=((8, 1024),), autocast="bfloat16", forwards_per_step=1
)


def own_plan(machine: Machine) -> Plan:
    return script_plan(machine)


def proposed(
    machine: Machine, seen: Observed | None = SEEN, allow: tuple[str, ...] = (), gradients: int = 0
) -> list[Plan]:
    own = own_plan(machine)
    costs = costs_of(seen, machine, own, allow)
    return [one.plan for one in proposals(costs, machine, own, (), gradients=gradients)]


def test_plans_have_the_scripts_own_batches_gpus_and_settings(machine: Machines) -> None:
    server = machine(4, "a100", "NV12")
    own = own_plan(server)
    plans = proposed(server)
    assert {plan.strategy for plan in plans} >= {"fsdp"}
    for plan in plans:
        assert (plan.micro_batch, plan.accumulation, plan.global_batch) == (8, 1, 32)
        assert (set(plan.gpus), plan.env) == (set(own.gpus), own.env)
        assert not same_run(plan, own)


def test_weights_stay_in_32_bits_unless_16_are_allowed(machine: Machines) -> None:
    server = machine(4, "a100", "NV12")
    for allow, expected in (((), "bf16-autocast"), ((HALF_WEIGHTS,), "bf16-params")):
        sharded = [plan for plan in proposed(server, allow=allow) if plan.strategy == "fsdp"]
        assert sharded
        assert {plan.precision for plan in sharded} == {expected}


def test_accumulation_that_synchronises_each_pass_is_proposed_to_skip_it(machine: Machines) -> None:
    plans = proposed(machine(4, "a100", "PHB"), replace(SEEN, forwards_per_step=4))
    assert ("ddp", 4) in {(plan.strategy, plan.accumulation) for plan in plans}


@pytest.mark.parametrize(
    ("gradients", "caps"), [(880_000_000, {5.0, 100.0}), (20_000_000, {5.0, 100.0}), (1_000_000, set()), (0, set())]
)
def test_bucket_caps_are_proposed_that_make_another_number_of_buckets(
    machine: Machines, gradients: int, caps: set[float]
) -> None:
    for seen in (SEEN, None):
        plans = proposed(machine(4, "a100", "NV12"), seen, gradients=gradients)
        assert {plan.bucket_cap_mb for plan in plans if plan.strategy == "ddp"} == caps


def test_a_model_of_another_kind_has_each_way_to_shard_and_recomputation_only_for_want_of_memory(
    machine: Machines,
) -> None:
    server = machine(4, "a100", "NV12")
    own = own_plan(server)
    plans = proposed(server, None)
    assert [(plan.strategy, plan.reshard_after_forward) for plan in plans] == [("fsdp", True), ("fsdp", False)]
    assert all(plan.micro_batch is None and plan.activation_checkpointing == "none" for plan in plans)
    short = [one.plan for one in proposals(None, server, own, (), short_of_memory=True)]
    assert {(plan.strategy, plan.activation_checkpointing) for plan in short} >= {("ddp", "full"), ("fsdp", "full")}


def test_only_the_strategies_asked_for_are_proposed(machine: Machines) -> None:
    server = machine(4, "a100", "NV12")
    own = own_plan(server)
    assert {one.plan.strategy for one in proposals(None, server, own, ("fsdp",))} == {"fsdp"}
    assert proposals(None, server, own, ("ddp",)) == []
