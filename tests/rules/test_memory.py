from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.cost import Costs
from advisor.rules.job import Architecture, Job
from advisor.rules.machine import Machine
from advisor.rules.memory import moments, peak, states
from advisor.rules.plan import Memory, Plan
from advisor.rules.profile import Amount, Kernels, Moment, Profile, Unit
from advisor.rules.remedies import remedies

Jobs = Callable[..., Job]
GPT = Architecture(layers=24, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocab=50304, gated_mlp=False, rmsnorm=False)


def sharded(shards: int, **fields: object) -> Plan:
    given = {"micro_batch": 1, "global_batch": shards, "precision": "bf16-params", "strategy": "fsdp"} | fields
    return Plan(gpus=tuple(f"GPU{i}" for i in range(shards)), shard_size=shards, **given)  # type: ignore[arg-type]


def memory_of(job: Job, plan: Plan, machine: Machine) -> Memory:
    return Costs(job, machine).memory(plan)


def test_adamw_keeps_sixteen_bytes_per_parameter_and_sharding_divides_them(job: Jobs) -> None:
    assert states(job(13e9)).total == pytest.approx(208e9)
    assert states(job(13e9), shard_size=4).total == pytest.approx(52e9)


def test_eight_bit_adam_and_adapters_keep_less(job: Jobs) -> None:
    full = states(job(13e9)).total
    assert states(job(13e9, optimizer="adamw-8bit")).total < 0.65 * full
    adapters = states(job(13e9, trainable_params=60_000_000))
    assert adapters.total == pytest.approx(2 * (13e9 - 60e6) + 16 * 60e6)
    assert states(job(13e9, trainable_params=60_000_000, quantize="nf4")).total < 0.3 * adapters.total


@given(
    st.integers(0, 9),
    st.integers(1, 8),
    st.sampled_from(["fsdp", "ddp"]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_more_sharding_ranks_never_need_more_memory_per_gpu(
    doublings: int, micro_batch: int, strategy: str, checkpointing: str
) -> None:
    given = Job(params=1_400_000_000, trainable_params=1_400_000_000, architecture=GPT, seq=2048, global_batch=2**10)

    def needed(shards: int) -> int:
        fields = {"micro_batch": micro_batch, "activation_checkpointing": checkpointing}
        return memory_of(given, sharded(shards, **fields), Machine()).total

    assert needed(2 ** (doublings + 1)) <= needed(2**doublings)


def test_checkpointing_and_smaller_micro_batches_need_less(job: Jobs) -> None:
    whole = memory_of(job(1.3e9), sharded(4, micro_batch=4), Machine()).total
    assert memory_of(job(1.3e9), sharded(4, micro_batch=4, activation_checkpointing="full"), Machine()).total < whole
    assert memory_of(job(1.3e9), sharded(4, micro_batch=2), Machine()).total < whole


def test_the_parts_without_context_are_the_allocators_peak(job: Jobs) -> None:
    found = memory_of(job(1.3e9), sharded(4, micro_batch=4), Machine())
    parts = found.parameters + found.gradients + found.optimizer + found.activations + found.logits
    assert found.total == pytest.approx(parts + found.communication + found.context, abs=10)


def test_offload_moves_the_states_to_the_host(job: Jobs) -> None:
    found = memory_of(job(13e9), sharded(4, cpu_offload=True), Machine())
    assert found.parameters == found.optimizer == found.gradients == 0
    assert found.host == pytest.approx(52e9)


def test_memory_in_use_is_not_available(nvswitch_server: Machine, job: Jobs) -> None:
    used = replace(nvswitch_server.gpus[0], memory_used=40 * 10**9)
    busy = replace(nvswitch_server, gpus=(used, *nvswitch_server.gpus[1:]))
    plan = sharded(2)
    free = memory_of(job(1.3e9), plan, nvswitch_server).available
    assert memory_of(job(1.3e9), plan, busy).available == pytest.approx(free - 0.95 * 40e9, rel=1e-6)


def test_remedies_say_what_would_fit_and_what_would_not(a10g_server: Machine, job: Jobs) -> None:
    found = {remedy.option: remedy for remedy in remedies(job(13e9), a10g_server)}
    assert found["--lora-rank 16 --quantize nf4"].fits
    assert not found["--seq 1024"].fits
    assert "208 GB of host memory" in found["--allow cpu-offload"].note
    assert found[""].change.endswith("NVIDIA A10G, fully sharded")


BLOCK = Unit(
    name="block",
    kind="block",
    count=10,
    params=1000,
    trainable=1000,
    tensors=4,
    forward=Kernels(),
    backward=Kernels(),
    kept=Amount(per_sample=100.0),
    entry=Amount(per_sample=10.0),
)
BLOCKS = Profile(
    precision="bf16-autocast",
    units=(BLOCK,),
    moments=(
        Moment(name="loss", live=Amount(per_sample=1500.0), ready=0, kept=10),
        Moment(name="backward of the last block", live=Amount(per_sample=1200.0), ready=500, kept=9),
        Moment(name="backward of the first block", live=Amount(per_sample=300.0), ready=9500, kept=0),
    ),
    largest=Amount(),
    source="formula",
)


def alone(**fields: object) -> Plan:
    return Plan(gpus=("GPU0",), strategy="single", micro_batch=1, precision="bf16-autocast", **fields)  # type: ignore[arg-type]


def test_the_peak_is_where_activations_and_ready_gradients_together_are_most() -> None:
    """300 bytes live and 4 x 9500 of gradients are more than 1500 live and none."""
    found = peak(BLOCKS, alone())
    assert (found.name, found.live, found.gradients) == ("backward of the first block", 300.0, 38_000.0)


def test_accumulation_has_whole_gradients_at_the_loss_already() -> None:
    found = peak(BLOCKS, alone(accumulation=2))
    assert (found.name, found.gradients) == ("loss", 40_000.0)


def test_checkpointing_keeps_what_entered_the_blocks_before_a_moment() -> None:
    kept = peak(BLOCKS, alone(accumulation=2)).live
    again = peak(BLOCKS, alone(accumulation=2, activation_checkpointing="full")).live
    assert kept - again == 10 * (100.0 - 10.0)


def test_selective_checkpointing_keeps_every_second_block_whole() -> None:
    """Of 10 blocks the first, third, ... keep what entered them; of the 9 that stand before the last one 5 do."""
    found = [live for _, live in moments(BLOCKS, alone(activation_checkpointing="selective"))]
    assert found == [1500.0 - 5 * 90.0, 1200.0 - 5 * 90.0, 300.0]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 8))
def test_selective_checkpointing_needs_what_lies_between_none_and_full(counts: list[int], micro_batch: int) -> None:
    """At every moment, whatever units the blocks are counted in; in all units together it takes half, rounded up."""
    total = sum(counts)
    units = tuple(replace(BLOCK, count=count) for count in counts)
    live = tuple(Moment(name=str(n), live=Amount(per_sample=100.0 * n), ready=0, kept=n) for n in range(total + 1))
    profile = replace(BLOCKS, units=units, moments=live)

    def at(checkpointing: str) -> list[float]:
        plan = replace(alone(activation_checkpointing=checkpointing), micro_batch=micro_batch)
        return [bytes_ for _, bytes_ in moments(profile, plan)]

    none, selective, full = at("none"), at("selective"), at("full")
    assert all(least <= half <= most for least, half, most in zip(full, selective, none, strict=True))
    assert none[-1] - selective[-1] == pytest.approx(90.0 * micro_batch * ((total + 1) // 2))
    assert none[-1] - full[-1] == pytest.approx(90.0 * micro_batch * total)


def test_gradients_kept_unsharded_over_micro_batches_cost_more_than_those_reduced_each_time() -> None:
    fields = {"micro_batch": 1, "accumulation": 4, "global_batch": 16}
    given = Job(params=1_400_000_000, trainable_params=1_400_000_000, architecture=GPT, seq=2048, global_batch=16)
    late = memory_of(given, sharded(4, **fields), Machine())
    each = memory_of(given, sharded(4, sync_each_micro_batch=True, **fields), Machine())
    assert late.gradients - each.gradients == pytest.approx(4 * 1.4e9 * (1 - 1 / 4), rel=0.01)
