"""What `advisor recommend` shows, when a plan fits and when none does."""

from typing import Any

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from advisor.report.console import render
from advisor.report.recommendation import recommendation_report, recommendation_verdict
from advisor.rules.job import Architecture, Job
from advisor.rules.machine import Gpu, Host, Machine
from advisor.rules.plan import Assumption, Candidate, Finding, Launcher, Memory, Plan, Predicted, Recommendation

GB = 10**9
AGAIN = "advisor recommend --params 13e9"
GPUS = tuple(f"GPU{i}" for i in range(8))
MACHINE = Machine(
    gpus=tuple(Gpu(id=name, index=i, memory=85 * GB) for i, name in enumerate(GPUS)),
    host=Host(memory_available=400 * GB),
)
JOB = Job(
    params=13 * GB,
    trainable_params=13 * GB,
    architecture=Architecture(
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=40,
        ffn=13824,
        vocab=32000,
        gated_mlp=True,
        rmsnorm=True,
        tied_embeddings=False,
        learned_positions=False,
    ),
    seq=2048,
    global_batch=64,
)


def plan(**changes: Any) -> Plan:
    whole = Plan(
        gpus=GPUS,
        strategy="fsdp",
        shard_size=8,
        micro_batch=4,
        accumulation=2,
        sync_each_micro_batch=True,
        global_batch=64,
        precision="bf16-params",
        launcher=Launcher(nproc_per_node=8, threads_per_rank=13),
    )
    return replace(whole, **changes)


def candidate(
    states: float, activations: float, step: float, rejected: str | None = None, available: float = 76, **changes: Any
) -> Candidate:
    """Make a candidate of `states` and `activations` in GB, and a step in seconds."""
    memory = Memory(
        total=round((states + activations + 4.9) * GB),
        available=round(available * GB),
        parameters=round(states * GB / 4),
        gradients=round(states * GB / 4),
        optimizer=round(states * GB / 2),
        activations=round(activations * GB),
        logits=round(1.6 * GB),
        communication=round(2.5 * GB),
        context=round(0.8 * GB),
        host=52 * GB if changes.get("cpu_offload") else 0,
    )
    predicted = Predicted(
        step_seconds=step,
        step_seconds_range=(step * 0.9, step * 1.1),
        compute_seconds=step * 0.8,
        communication_seconds=step * 0.5,
        exposed_communication_seconds=step * 0.15,
        samples_per_second=64 / step,
        tokens_per_second=64 * 2048 / step,
        memory=memory,
        source="data sheet",
    )
    return Candidate(plan=plan(**changes), predicted=predicted, rejected=rejected)


def fitting() -> Recommendation:
    best = candidate(26, 33.2, 4.38)
    others = (
        candidate(26, 38, 4.41, "tie: within 5 % of the plan, and less simple", reshard_after_forward=False),
        candidate(
            26, 7.4, 5.91, "1.3x the step time: 5.91 s", activation_checkpointing="full", micro_batch=8, accumulation=1
        ),
        candidate(
            52,
            12.7,
            9.2,
            "2.1x the step time: 9.2 s, 2.8 s of it waiting for communication",
            gpus=GPUS[:4],
            shard_size=4,
            activation_checkpointing="full",
        ),
        candidate(
            208,
            4.1,
            3.9,
            "needs 217 GB per GPU, 76 GB available",
            strategy="ddp",
            shard_size=1,
            micro_batch=1,
            accumulation=8,
            precision="bf16-autocast",
            bucket_cap_mb=100.0,
        ),
        candidate(
            208,
            4.1,
            31.2,
            "needs 217 GB per GPU, 76 GB available",
            strategy="single",
            gpus=GPUS[:1],
            shard_size=1,
            micro_batch=1,
            accumulation=64,
        ),
    )
    findings = (
        Finding(
            code="ENV104",
            name="nvls-broken",
            severity="warning",
            message="NVLink SHARP failed its probe: multicast memory could not be bound (CUDA error 401)",
            facts={"env": {"NCCL_NVLS_ENABLE": "0"}},
            remedy="restart nvidia-fabricmanager; until then the plan sets NCCL_NVLS_ENABLE=0",
        ),
        Finding(
            code="CPU101",
            name="shared-memory-small",
            severity="info",
            message="/dev/shm has 67.1 MB; eight ranks with workers want 1 GB",
            remedy="docker run --shm-size=1g",
        ),
    )
    return Recommendation(
        verdict="fits",
        summary="FSDP on 8 GPUs: 64.1 GB of 76 GB per rank, 4.38 s per step (3.94-4.82 s)",
        job=JOB,
        plan=replace(best.plan, env={"NCCL_NVLS_ENABLE": "0"}),
        predicted=best.predicted,
        command="advisor apply --plan plan.json train.py",
        candidates=(best, *others),
        findings=findings,
        assumptions=(
            Assumption(what="architecture", value="40 layers of 5120", why="usual at 13B; give --layers and --hidden"),
            Assumption(what="global batch", value=64, why="not given; give --global-batch"),
        ),
    )


def way(change: str, option: str, needed: float, fits: bool, note: str = "") -> dict[str, Any]:
    return {
        "change": change,
        "option": option,
        "needed": round(needed * GB),
        "available": 21_700_000_000,
        "fits": fits,
        "note": note,
    }


def falling_short() -> Recommendation:
    gpus = GPUS[:4]
    nearest = candidate(
        52,
        1.4,
        15.0,
        "needs 58.3 GB per GPU, 21.7 GB available",
        available=21.7,
        gpus=gpus,
        shard_size=4,
        micro_batch=1,
        accumulation=16,
        activation_checkpointing="full",
    )
    replicated = candidate(
        208,
        1.4,
        14.0,
        "needs 214 GB per GPU, 21.7 GB available",
        available=21.7,
        gpus=gpus,
        strategy="ddp",
        shard_size=1,
        micro_batch=1,
        accumulation=16,
    )
    finding = Finding(
        code="MEM101",
        name="optimizer-states-exceed-memory",
        severity="error",
        message="13e9 x 16 B = 208 GB of states; 4 x 21.7 GB = 86.8 GB available",
        facts={
            "states": 208 * GB,
            "what_would_fit": [
                way("8-bit AdamW", "--optimizer adamw-8bit", 39, False),
                way("keep the states in host memory", "--allow cpu-offload", 6.62, True, "needs 208 GB of host memory"),
                way("train adapters only (LoRA)", "--lora-rank 16", 20.6, True),
                way("16x NVIDIA A10G, fully sharded", "", 19.3, True),
            ],
        },
        remedy="keep the states in host memory (--allow cpu-offload); train adapters only (LoRA) (--lora-rank 16)",
    )
    return Recommendation(
        verdict="does-not-fit",
        summary="13B trained parameters with adamw have 208 GB of states, 52 GB on each of 4 fully sharded; "
        "the smallest plan needs 58.3 GB per rank, 21.7 GB available",
        job=JOB,
        plan=None,
        predicted=None,
        command="",
        candidates=(nearest, replicated),
        findings=(finding,),
        assumptions=(Assumption(what="sequence", value=2048, why="not given; give --seq"),),
    )


def report(recommendation: Recommendation, width: int = 100, colour: bool = False) -> str:
    return render(recommendation_report(recommendation, MACHINE, again=AGAIN), width=width, colour=colour)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("made", [fitting, falling_short], ids=["fits", "does-not-fit"])
def test_a_recommendation_is_explained(made: Any, width: int, page: SnapshotAssertion) -> None:
    assert report(made(), width) == page


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_asked(width: int) -> None:
    for recommendation in (fitting(), falling_short()):
        assert max(len(line) for line in report(recommendation, width).splitlines()) <= width


def test_the_first_lines_are_the_verdict_and_what_to_type() -> None:
    first, _, *commands = report(fitting()).splitlines()
    assert first.startswith("Fits: FSDP on 8 GPUs")
    assert [line.strip() for line in commands[:2]] == [
        f"{AGAIN} -o plan.json",
        "advisor apply --plan plan.json train.py",
    ]


def test_the_parts_of_memory_and_the_limit_are_shown_as_one_sum() -> None:
    lines = report(fitting()).splitlines()
    start = lines.index("Memory per rank at its peak") + 1
    numbers = {line.split()[0]: float(line.split()[1]) for line in lines[start : start + 9]}
    assert numbers.pop("available") == 76.0
    assert numbers.pop("total") == pytest.approx(sum(numbers.values()), abs=0.3)


def test_a_bar_of_what_is_too_large_runs_past_the_limit() -> None:
    total = next(line for line in report(falling_short()).splitlines() if line.startswith("  total"))
    limit = next(line for line in report(falling_short()).splitlines() if line.startswith("  available"))
    assert total.rindex("█") > limit.index("│")


def test_a_candidate_that_does_not_fit_has_no_step_time() -> None:
    row = next(line for line in report(fitting()).splitlines() if " one process " in line)
    assert row.split() == ["one", "process", "GPU0", "1x64", "217", "GB", "-", "-"]


def test_a_tie_is_marked() -> None:
    assert "  tie   FSDP, no reshard" in report(fitting())


def test_at_most_twelve_candidates_are_listed_and_the_plan_is_among_them() -> None:
    recommendation = fitting()
    worse = tuple(
        candidate(26, 20, step, f"{step}x the step time", micro_batch=1, accumulation=step) for step in range(5, 35)
    )
    text = report(replace(recommendation, candidates=worse + recommendation.candidates))
    table = text[text.index("Candidates") : text.index("Findings")]
    assert table.count("GPU0") == 12
    assert "  best  FSDP" in table
    assert "and 24 more candidates: --json lists all" in table


def test_a_variable_that_the_plan_sets_has_its_reason_beside_it() -> None:
    text = " ".join(report(fitting()).split())
    assert "NCCL_NVLS_ENABLE 0: NVLink SHARP failed its probe" in text


def test_what_would_fit_is_listed_with_what_to_add_to_the_command() -> None:
    text = " ".join(report(falling_short()).split())
    assert "train adapters only (LoRA) --lora-rank 16 20.6 GB yes" in text
    assert "Plan" not in text


def test_a_remedy_that_is_listed_above_is_not_repeated() -> None:
    assert report(falling_short()).count("--lora-rank 16") == 1


def test_a_live_machine_is_saved_first_to_get_the_same_answer_elsewhere() -> None:
    assert "advisor probe -o machine.json" in report(fitting())
    stored = recommendation_report(fitting(), replace(MACHINE, source="machine.json"), again=AGAIN)
    assert "advisor probe" not in render(stored, width=100, colour=False)


def test_the_verdict_is_one_line() -> None:
    verdict = render(recommendation_verdict(falling_short()), width=60, colour=False)
    assert verdict.startswith("Does not fit: 13B trained parameters")
    assert verdict.count("\n") == 1
