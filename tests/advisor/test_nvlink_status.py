"""What `nvidia-smi nvlink` prints of each link."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.probe.text.nvlink_status import read_nvlink_status
from advisor.rules.machine import Machine

CAPTURE = Path(__file__).parents[2] / "fixtures/captures/2xh200/nvlink.txt"
STATUS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000000)
\t Link 0: 25 GB/s
\t Link 1: <inactive>
\t Link 2: N/A
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000002)
\t Link 0: 25 GB/s
"""
REMOTE = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
\t Link 0: Remote Device 00000000:07:00.0: Link 46
\t Link 1: Remote Device 00000000:06:00.0: Link 2
\t Link 2: Remote Device 00000000:07:00.0: Link 3
"""


def read(text: str) -> Machine:
    machine = read_nvlink_status(text, "a mail")
    assert machine is not None
    return machine


def test_speeds_states_names_and_uuids_are_read() -> None:
    first, second = read(STATUS).gpus
    assert (first.id, first.name, first.uuid) == (
        "GPU0",
        "NVIDIA A100-SXM4-40GB",
        "GPU-00000000-0000-0000-0000-000000000000",
    )
    assert [(link.number, link.active, link.bandwidth) for link in first.nvlinks or ()] == [
        (0, True, 25e9),
        (1, False, None),
        (2, None, None),
    ]
    assert (second.id, second.index) == ("GPU2", 2)


def test_a_gpu_of_which_all_links_are_inactive_has_none() -> None:
    text = STATUS + "GPU 3: NVIDIA A100\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert read(text).gpus[-1].nvlinks == ()


def test_a_gpu_of_which_only_the_name_is_left_has_unknown_links() -> None:
    assert read(STATUS + "GPU 3: NVIDIA A100\n").gpus[-1].nvlinks is None


def test_the_capabilities_behind_the_states_change_nothing() -> None:
    text = CAPTURE.read_text()
    states = text[: re.search(r"GPU 0:.*\n.*Link 0, ", text).start()]  # type: ignore[union-attr]
    assert read(text) == read(states)
    assert [len(gpu.nvlinks or ()) for gpu in read(text).gpus] == [18, 18]


def test_remote_ends_are_read_and_those_with_more_ports_than_a_gpu_are_switches() -> None:
    (gpu,) = read(REMOTE).gpus
    assert [(link.remote, link.remote_kind) for link in gpu.nvlinks or ()] == [
        ("00000000:07:00.0", "switch"),
        ("00000000:06:00.0", None),
        ("00000000:07:00.0", "switch"),
    ]


def test_states_and_remote_ends_of_one_text_join() -> None:
    text = (
        "GPU 0: A\n Link 0: 25 GB/s\n Link 1: <inactive>\nGPU 0: A\n Link 0: Remote Device 00000000:07:00.0: Link 4\n"
    )
    links = read(text).gpus[0].nvlinks or ()
    assert [(link.active, link.bandwidth, link.remote) for link in links] == [
        (True, 25e9, "00000000:07:00.0"),
        (False, None, None),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: re.sub("^", "> ", t, flags=re.MULTILINE),
        lambda t: f"root@node:~# nvidia-smi nvlink --status\n{t}$ exit\n",
        lambda t: t.replace("\t", "        "),
        lambda t: t.replace("\n", " "),
        lambda t: re.sub(r"^\s+", "", t, flags=re.MULTILINE),
        lambda t: t.replace("GPU 2:", "\n     [snip]\n\nGPU 2:"),
        lambda t: f"\x1b[1m{t}\x1b[0m",
    ],
    ids=["crlf", "quote", "prompt", "spaces", "one line", "no indent", "snip", "escape codes"],
)
def test_the_same_states_are_read_through(change: Callable[[str], str]) -> None:
    assert read(change(STATUS)) == read(STATUS)


@pytest.mark.parametrize("text", ["", "GPU 0: NVIDIA A100 (UUID: GPU-0)\n", " Link 0: 25 GB/s\n", "Link 0: up\n"])
def test_a_text_without_links_of_a_gpu_is_left_to_others(text: str) -> None:
    assert read_nvlink_status(text, "a mail") is None
