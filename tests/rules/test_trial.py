import random

from hypothesis import given
from hypothesis import strategies as st

from advisor.rules.plan import Plan
from advisor.rules.trial import REPEATED, Trial, contenders, is_faster, margin, settle, timing, timings

DDP = Plan(gpus=("GPU0", "GPU1"), strategy="ddp")
FSDP = Plan(gpus=("GPU0", "GPU1"), strategy="fsdp", shard_size=2)


def trial(plan: Plan, *steps: float, outcome: str = "measured") -> Trial:
    return Trial(plan=plan, purpose="candidate", outcome=outcome, steps=steps, seconds=1.0)  # type: ignore[arg-type]


def test_nothing_is_known_of_a_plan_that_was_not_measured() -> None:
    assert timing([]) is None
    assert timing([trial(DDP, outcome="failed")]) is None


@given(st.lists(st.floats(0.05, 0.2), min_size=1, max_size=40), st.integers(1, 5))
def test_more_trials_make_a_timing_surer_but_never_certain(steps: list[float], trials: int) -> None:
    one, more = timing([trial(DDP, *steps)]), timing([trial(DDP, *steps)] * trials)
    assert one is not None
    assert more is not None
    assert min(steps) <= one.median == more.median <= max(steps)
    assert 0 < more.noise <= one.noise
    assert more.noise >= REPEATED / trials**0.5


def test_trials_that_disagree_make_every_plan_noisier() -> None:
    alone = [(FSDP, [trial(FSDP, 0.95, 0.95, 0.95)])]
    for medians, tells in (((1.0, 1.0), True), ((0.9, 1.1), False)):
        replicated = [trial(DDP, at, at, at) for at in medians]
        known = timings([(DDP, replicated), *alone])
        assert (settle(known) == FSDP) == tells
        assert (len(contenders(known)) == 1) == tells
    assert timings([(DDP, [trial(DDP, 1.0), trial(DDP, outcome="failed")])]) == []


def test_a_faster_plan_wins_only_beyond_the_noise_and_else_the_simpler_one_does() -> None:
    ddp = timing([trial(DDP, 1.0, 1.0, 1.0)])
    assert ddp is not None
    for step, wins in ((0.9, True), (0.99, False), (1.0, False), (1.2, False)):
        fsdp = timing([trial(FSDP, step, step, step)])
        assert fsdp is not None
        assert is_faster(fsdp, ddp) == wins
        assert settle([(DDP, ddp), (FSDP, fsdp)]) == (FSDP if wins else DDP)
        assert len(contenders([(DDP, ddp), (FSDP, fsdp)])) == (2 if abs(step - 1) <= margin(fsdp, ddp) else 1)


def test_a_setting_that_ties_is_left_out() -> None:
    told = {"NCCL_SOCKET_NTHREADS": "4"}
    with_it = Plan(gpus=DDP.gpus, strategy="ddp", env=told)
    same = timing([trial(DDP, 1.0, 1.0)])
    assert same is not None
    assert settle([(with_it, same), (DDP, same)]) == DDP


def test_of_plans_alike_a_winner_is_named_in_at_most_one_of_ten_comparisons() -> None:
    draw = random.Random(0)
    wrong = 0
    for _ in range(400):
        both = []
        for plan in (DDP, FSDP):
            levels = [1 + draw.gauss(0, REPEATED) for _ in range(3)]
            both.append((plan, [trial(plan, *(at * (1 + draw.gauss(0, 0.03)) for _ in range(8))) for at in levels]))
        wrong += len(contenders(timings(both))) == 1
    assert wrong <= 40
