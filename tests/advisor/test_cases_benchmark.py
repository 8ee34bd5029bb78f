"""The benchmark of cases from practice reads what cases say and judges what it should."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SERVER = {"nodes": 1, "gpus_per_node": 8, "gpu": "A100 80GB", "memory_gib": 80, "intra_link": "NVSwitch"}
SMALL = {"params": 125e6, "arch": "GPT-2", "method": "full", "micro_batch": 4, "seq_len": 512}
LARGE = {"params": 70e9, "arch": "decoder", "method": "full", "precision": "bf16", "optimizer": "AdamW"}


def case(*lines: str, kind: str = "A", name: str = "one", **fields: Any) -> dict[str, Any]:
    given = {"id": name, "kind": kind, "hardware": SERVER, "workload": SMALL, "expected_advice": list(lines)}
    return given | fields


def run(folder: Path, *cases: dict[str, Any]) -> tuple[str, dict[str, int]]:
    for index, content in enumerate(cases):
        (folder / f"{index}.json").write_text(json.dumps(content))
    command = [sys.executable, str(ROOT / "benchmarks" / "cases.py"), str(folder)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return table, json.loads(table.splitlines()[-1])


def verdicts(folder: Path, *cases: dict[str, Any]) -> list[str]:
    """Return the words before each line of the cases: right, WRONG, not judged, to read."""
    lines = [line for line in run(folder, *cases)[0].splitlines() if line.startswith("    ")]
    return [line.strip().split("  ")[0] for line in lines if not line.strip().startswith("given")]


def test_a_strategy_that_is_recommended_is_right_and_another_wrong(tmp_path: Path) -> None:
    lines = (
        "strategy in {ddp, ddp_accum}",
        "strategy not in {dataparallel, fsdp}",
        "strategy in {fsdp}",
        "strategy not in {ddp_accum}",
    )
    table, counts = run(tmp_path, case(*lines))
    assert "WRONG       strategy in {fsdp}  [ddp_accum]" in table
    assert (counts["checks"], counts["checks_passed"], counts["passed"], counts["cases"]) == (4, 2, 0, 1)


def test_what_stands_behind_the_braces_must_hold_too(tmp_path: Path) -> None:
    workload = LARGE | {"params": 7e9, "micro_batch": 1}
    lines = (
        "strategy in {fsdp} with activation_checkpointing = none",
        "strategy in {fsdp} with activation_checkpointing = true",
        "strategy not in {fsdp} for 125M",
        "strategy in {fsdp} with the choice made after the network is fixed",
        "strategy in {fsdp} (FULL_SHARD)",
        "strategy in {fsdp} (SHARD_GRAD_OP)",
    )
    *found, full, half = verdicts(tmp_path, case(*lines, workload=workload))
    assert found == ["right", "WRONG", "right", "right"]
    assert {full, half} == {"right", "WRONG"}


def test_another_job_or_card_is_asked_about_where_a_line_begins_with_it(tmp_path: Path) -> None:
    lines = (
        "for method=full: strategy in {refuse}",
        "for method=qlora: strategy in {fsdp, ddp, ddp_accum}",
        "for a loop that generates: strategy in {single}",
        "on a 12 GiB card: activation_checkpointing = full, not none",
    )
    small = SERVER | {"gpus_per_node": 2, "gpu": "RTX 3090 / 4090", "memory_gib": 24}
    found = verdicts(tmp_path, case(*lines, hardware=small, workload=LARGE | {"params": 13e9, "micro_batch": 1}))
    assert found == ["right", "right", "not judged", "WRONG"]


def test_a_job_that_does_not_fit_is_refused_and_offered_offload(tmp_path: Path) -> None:
    lines = ("strategy in {fsdp_offload}", "strategy in {refuse}", "strategy not in {fsdp, hsdp}")
    assert verdicts(tmp_path, case(*lines, workload=LARGE)) == ["right"] * 3
    little = SERVER | {"host_ram_gib": 256}
    assert verdicts(tmp_path, case(*lines, workload=LARGE, hardware=little)) == ["WRONG", "right", "right"]


def test_options_are_compared_with_the_plan(tmp_path: Path) -> None:
    workload = SMALL | {"micro_batch": 2, "global_batch": 256}
    lines = (
        "option grad_accum_steps = 16 (256 / (2 * 8)) with no_sync on the 15 others",
        "option grad_accum_steps = 8",
        "option activation_checkpointing = true",
        "option activation_checkpointing when predicted peak > 90% of memory",
        "option no_sync around forward AND backward",
        "option nproc_per_node = number of GPUs (8)",
        "option bf16/fp16 gradient compression only when measured",
        "option grad_accum_steps large enough that predicted comm <= 50% of step",
        "option a setting that no plan has",
    )
    words = ["right", "WRONG", "WRONG", "right", "right", "right", "right", "right", "WRONG"]
    assert verdicts(tmp_path, case(*lines, workload=workload)) == words


def test_two_checks_may_share_a_line(tmp_path: Path) -> None:
    line = "strategy in {fsdp}; option sync_each_micro_batch = true when headroom < unsharded gradients"
    workload = LARGE | {"params": 8e9, "grad_accum_steps": "> 1"}
    assert run(tmp_path, case(line, workload=workload))[1]["checks_passed"] == 2


def test_a_second_choice_passes_only_under_its_conditions(tmp_path: Path) -> None:
    first = "strategy in {hsdp}"
    accepted = "also acceptable: fsdp only together with a predicted peak <= 99% of 80 GB"
    refused = "also acceptable: fsdp only together with a predicted peak <= 1% of 80 GB"
    workload = LARGE | {"params": 7e9}
    _, counts = run(
        tmp_path, case(first, accepted, workload=workload), case(first, refused, workload=workload, name="two")
    )
    assert (counts["checks"], counts["checks_passed"]) == (2, 1)


def test_figures_are_compared_with_the_prediction(tmp_path: Path) -> None:
    lines = (
        "predicted efficiency on 8 NVLink GPUs between 0.5 and 1.0",
        "predicted efficiency on 8 NVLink GPUs between 0.01 and 0.02",
        "predicted all-reduce bandwidth >= 50 GB/s",
        "predicted peak <= 80 GiB",
        "predicted mood near 20%",
        "diagnosis in {compute-bound}",
        "diagnosis in {memory}",
    )
    words = ["right", "WRONG", "right", "right", "not judged", "right", "WRONG"]
    assert verdicts(tmp_path, case(*lines)) == words


def test_variables_are_looked_for_in_the_plan_and_in_what_is_found(tmp_path: Path) -> None:
    lines = (
        "env NCCL_DEBUG = WARN",
        "env NCCL_DEBUG = INFO",
        "env NCCL_IB_HCA unset",
        "env NCCL_SOCKET_IFNAME must not contain lo in a multi-node job",
    )
    inputs = {"env": {"NCCL_SOCKET_IFNAME": "lo"}}
    assert verdicts(tmp_path, case(*lines, inputs=inputs)) == ["right", "WRONG", "right", "WRONG"]


def test_lines_in_words_are_counted_only_where_a_rule_is_named_for_them(tmp_path: Path) -> None:
    line = "must say: offered alternatives: LoRA/QLoRA or more GPUs"
    known = case(line, name="A-70b-full-7xa100-offload", workload=LARGE)
    unknown = case(line, name="another", workload=LARGE)
    table, counts = run(tmp_path, known, unknown)
    assert (counts["checks"], counts["checks_passed"]) == (1, 1)
    assert f"to read     {line}" in table
    assert "given       MEM101 70B trained parameters" in table


def test_where_the_model_is_built_is_a_setting_of_the_plan(tmp_path: Path) -> None:
    lines = (
        "option build the model on CPU, or on the meta device",
        "option no model.to(device) before wrapping",
        "option never move the whole model to a GPU before FSDP",
        "option load the weights on the host",
    )
    cards = SERVER | {"gpu": "RTX 3090", "memory_gib": 24, "intra_link": "PCIe"}
    workload = LARGE | {"params": 6.7e9}
    assert verdicts(tmp_path, case(*lines, workload=workload, hardware=cards)) == ["right"] * 4
    assert verdicts(tmp_path, case(*lines, workload=workload)) == ["WRONG"] * 4


def test_an_alarm_on_a_case_that_expects_none_is_counted(tmp_path: Path) -> None:
    inputs = {"env": {"NCCL_P2P_DISABLE": "1"}}
    quiet = case("finding: none (information at most)", kind="B")
    alarmed = case("finding: none", kind="B", name="two", inputs=inputs)
    assert run(tmp_path, quiet)[1]["clean_false_alarms"] == 0
    assert run(tmp_path, quiet, alarmed)[1]["clean_false_alarms"] == 1


def test_texts_among_the_inputs_make_the_machine(tmp_path: Path) -> None:
    matrix = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\t X \tPHB\t0\nGPU1\tPHB\t X \t0\n"
    hardware = {"nodes": 1, "gpus_per_node": 2, "gpu": "RTX 3090", "memory_gib": 24, "intra_link": "NVLink bridge"}
    line = "predicted all-reduce bandwidth <= 20 GB/s"
    assert verdicts(tmp_path, case(line, kind="B", hardware=hardware)) == ["WRONG"]
    read = case(line, kind="B", hardware=hardware, inputs={"nvidia-smi topo -m": matrix})
    assert verdicts(tmp_path, read) == ["right"]


def test_what_trains_nothing_is_not_judged(tmp_path: Path) -> None:
    generates = case("strategy in {single}", workload=SMALL | {"method": "inference in half precision"})
    _, counts = run(tmp_path, generates)
    assert (counts["checks"], counts["cases_not_judged"], counts["not_judged"]) == (0, 1, 1)


TRAINS = """import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).to(f"cuda:{rank}"))
torch.save(model.module.state_dict(), "a.pt")
"""
GUARDED = TRAINS.replace("torch.save(", "if rank == 0: torch.save(")


def script_case(name: str, script: str, twin: str, **expected: Any) -> dict[str, Any]:
    finding = {"rule": "save_on_all_ranks", "line": 6, "detect": "static", "severity": "error"} | expected
    return {"id": name, "kind": "C", "script": script, "clean_script": twin, "expected_finding": finding}


def test_a_script_is_judged_by_line_and_meaning_and_its_twin_by_alarms(tmp_path: Path) -> None:
    table, counts = run(
        tmp_path,
        script_case("found", TRAINS, GUARDED),
        script_case("nearby", TRAINS, GUARDED, line=5, also_accept_lines=[6]),
        script_case("elsewhere", TRAINS, GUARDED, line=5),
        script_case("another", TRAINS, GUARDED, rule="tracker_init_all_ranks"),
        script_case("unclean", TRAINS, TRAINS),
        script_case("at run time", GUARDED, GUARDED, detect="runtime"),
    )
    assert (counts["cases"], counts["checks"], counts["checks_passed"], counts["clean_false_alarms"]) == (6, 5, 3, 1)
    assert "false alarm: error SCR151 line 6" in table


# What a case says of its machine and job, and what the answer shows that it was understood.
WORDS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"inter_link": "40 Gbit/s Ethernet, no InfiniBand", "nodes": 2}, {}, "GPUs"),
    ({"gpu": "not stated (data-centre class)", "gpus_per_node": "1 to 4", "intra_link": "not stated"}, {}, "4 GPUs"),
    ({"gpu": "V100-class", "memory_gib": 32, "intra_link": "NVLink"}, {"precision": "amp"}, "of 32.6 GB"),
    ({"gpu": "H100 95 GiB", "memory_gib": 95}, {"seq_len": "variable, unpacked"}, "of 96.9 GB"),
    ({"gpu": "a card nobody knows", "memory_gib": 10}, {"arch": "ResNet-50", "params": 25e6}, "of 10.2 GB"),
    ({"nodes": "several", "inter_link": "cluster fabric"}, {"method": "LoRA", "params": 7e9}, "GPUs"),
    ({}, {"arch": "24-layer decoder", "params": None, "strategy_used": "FSDP2"}, "8 GPUs"),
)


def test_free_words_make_a_machine_and_a_job(tmp_path: Path) -> None:
    told = [
        case("strategy not in {dataparallel}", name=f"case-{i}", hardware=SERVER | hardware, workload=SMALL | workload)
        for i, (hardware, workload, _) in enumerate(WORDS)
    ]
    table, counts = run(tmp_path, *told)
    answers = [line for line in table.splitlines() if line.startswith("case-")]
    assert [words in answer for answer, (*_, words) in zip(answers, WORDS, strict=True)] == [True] * len(WORDS)
    assert counts["checks_passed"] == len(WORDS)
