"""The table of NCCL's variables, how NCCL reads values, and what rules make of any of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.catalog import RULES
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine, NcclLog, Software
from advisor.rules.nccl_choice import FUNCTIONS, allowed, level_of
from advisor.rules.nccl_variables import (
    Setting,
    nccl_version,
    nearest,
    number,
    release,
    setting,
    variables,
)
from advisor.rules.nccl_variables import settings as settings_of
from advisor.rules.recommend import recommend
from advisor.rules.rule import Case, run_rules

PROTOCOLS = ("ll", "ll128", "simple")
OF_NCCL = [rule for rule in RULES if "ENV101" <= rule.code <= "ENV120"]


@pytest.mark.parametrize(
    ("text", "read"),
    [("1", 1), (" 0x10", 16), ("010", 8), ("-2", -2), ("4M", 4), ("true", 0), ('"1"', 0), ("", 0), ("0", 0)],
)
def test_numbers_are_read_as_strtoll_does(text: str, read: int) -> None:
    assert number(text) == read


def test_every_row_of_the_table_is_complete() -> None:
    for row in variables().values():
        assert row.name.startswith("NCCL_") and row.source.startswith("https://")
        assert (row.policy == "renamed") <= (row.new in variables() and row.renamed is not None)
        assert (row.policy == "removed") <= (row.removed is not None)
        assert (row.policy == "diagnosis") <= (row.cost is not None)
        assert row.default is None or row.changes_nothing(row.default)
        assert all(release(text) for text in (row.since, row.removed, row.renamed) if text)


def test_a_slip_of_the_pen_is_near_one_name() -> None:
    assert nearest("NCCL_IB_TIMEOUTS") == "NCCL_IB_TIMEOUT"
    assert nearest("NCCL_SOCKET_IFNAM") == "NCCL_SOCKET_IFNAME"
    assert nearest("NCCL_SOMETHING_ELSE") is None


def test_a_setting_says_where_it_comes_from() -> None:
    machine = Machine(
        environment={"NCCL_ALGO": "Ring", "NCCL_IB_TC": "106", "OMP_NUM_THREADS": "1", "NCCL_PROTO": ""},
        environment_files={"NCCL_IB_TC": "/etc/nccl.conf"},
        nccl_log=NcclLog(variables={"NCCL_CROSS_NIC": "0", "NCCL_DEBUG": "INFO"}),
    )
    assert settings_of(machine) == (
        Setting("NCCL_ALGO", "Ring"),
        Setting("NCCL_IB_TC", "106", "/etc/nccl.conf"),
        Setting("NCCL_PROTO", ""),
        Setting("NCCL_CROSS_NIC", "0", logged=True),
    )
    assert setting(machine, "NCCL_PROTO") is None
    assert [found.layer for found in settings_of(machine)][:2] == ["the environment", "/etc/nccl.conf"]
    assert Setting("NCCL_IB_TC", "106", "/etc/nccl.conf").undo == "delete the line NCCL_IB_TC= from /etc/nccl.conf"


def test_a_machine_that_names_no_nccl_is_taken_to_have_that_of_the_oldest_pytorch() -> None:
    assert nccl_version(Machine()) == (2, 28)
    assert nccl_version(Machine(software=Software(nccl="2.29.7"))) == (2, 29, 7)
    assert nccl_version(Machine(nccl_log=NcclLog(version="2.21.5+cuda12.4"))) == (2, 21, 5)


def test_lists_are_read_as_nccl_does() -> None:
    assert allowed("Simple,LL", PROTOCOLS) == dict.fromkeys(FUNCTIONS, ("ll", "simple"))
    assert allowed("^LL", PROTOCOLS) == dict.fromkeys(FUNCTIONS, ("ll128", "simple"))
    assert allowed("LL;allreduce:simple", PROTOCOLS) == dict.fromkeys(FUNCTIONS, ("ll",)) | {"allreduce": ("simple",)}
    assert allowed("LL256", PROTOCOLS) == "ll256"
    assert allowed("nothing:LL", PROTOCOLS) == "nothing"
    assert allowed("allreduce:LL;simple", PROTOCOLS) == "simple"


def test_distances_count_by_letter_and_the_old_numbers_still_do() -> None:
    assert [level_of(text) for text in ("PIX", "pix", "0", "3", "9", "")] == ["PIX", None, "LOC", "PHB", "SYS", None]


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(variables())), st.from_regex(r"NCCL_[A-Z_]{1,12}", fullmatch=True)),
        st.one_of(
            st.sampled_from(["0", "1", "true", "LL128", "^nvls", "Tree", "sys", "64", "-1", "", '"1"', "mlx5_1"]),
            st.text(),
        ),
        max_size=6,
    ),
    st.sampled_from(["8x h100 nvswitch", "8x 4090 pcie4", "2x8 a100 nvswitch, ib 200", ""]),
)
def test_any_setting_on_any_machine_is_judged_without_an_error(environment: dict[str, str], words: str) -> None:
    machine = replace(load_machine(words) if words else Machine(), environment=environment)
    for finding in run_rules(OF_NCCL, Case(machine=machine)):
        assert finding.message and finding.remedy


@pytest.mark.parametrize("words", ["8x h100 nvswitch", "8x a100 nvswitch", "8x b200 nvswitch", "4x h200 nvswitch"])
def test_a_plan_for_a_healthy_node_sets_the_log_level_and_nothing_else(words: str) -> None:
    architecture, seq = assume_architecture(1_300_000_000)
    job = Job(
        params=1_300_000_000, trainable_params=1_300_000_000, architecture=architecture, seq=seq, global_batch=256
    )
    plan = recommend(job, load_machine(words)).plan
    assert plan is not None
    assert plan.env == {"NCCL_DEBUG": "WARN"}
