"""What `nvidia-smi -q` prints of each GPU."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.probe.text.smi_query import read_smi_query
from advisor.rules.machine import Gpu, Machine, MigInstance, Pcie, Process

CAPTURE = (Path(__file__).parents[2] / "fixtures/captures/2xh200/nvidia-smi-q.txt").read_text()
OLD = """\
==============NVSMI LOG==============

Timestamp                           : Mon Jan  1 00:00:00 2018
Driver Version                      : 390.30

Attached GPUs                       : 1
GPU 00000000:3B:00.0
    Product Name                    : Tesla V100-PCIE-16GB
    GPU UUID                        : GPU-1
    PCI
        Bus Id                      : 00000000:3B:00.0
        GPU Link Info
            PCIe Generation
                Max                 : 3
                Current             : 1
            Link Width
                Max                 : 16x
                Current             : 8x
    Clocks Throttle Reasons
        Idle                        : Active
        Applications Clocks Setting : Active
        HW Slowdown                 : Active
            HW Thermal Slowdown     : Not Active
            HW Power Brake Slowdown : Active
        SW Thermal Slowdown         : Not Active
    FB Memory Usage
        Total                       : 16160 MiB
        Used                        : 10 MiB
    BAR1 Memory Usage
        Total                       : 16384 MiB
    Ecc Mode
        Current                     : Enabled
        Pending                     : Disabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 7
                Total               : 7
            Double Bit
                Device Memory       : 2
                Register File       : 1
                Total               : 3
        Aggregate
            Double Bit
                Total               : 9
    Processes
        Process ID                  : 4711
            Type                    : C
            Name                    : python : train
            Used GPU Memory         : 10 MiB
        Process ID                  : 4712
            Type                    : C
            Name                    : /usr/bin/other
            Used GPU Memory         : N/A

"""
MIG = """\
GPU 00000000:07:00.0
    Product Name                              : NVIDIA A100-SXM4-40GB
    MIG Mode
        Current                               : Enabled
        Pending                               : Enabled
    MIG Device
        Index                                 : 0
        GPU Instance ID                       : 1
        Compute Instance ID                   : 0
        Device Attributes
            Shared
                Multiprocessor count          : 42
        FB Memory Usage
            Total                             : 20096 MiB
            Used                              : 11 MiB
    MIG Device
        Index                                 : 1
        GPU Instance ID                       : 2
        Compute Instance ID                   : 0
        Shared FB Memory Usage
            Total                             : 19968 MiB
    GPU UUID                                  : GPU-5
    FB Memory Usage
        Total                                 : 40960 MiB
"""


def read(text: str) -> Machine:
    machine = read_smi_query(text, "a mail")
    assert machine is not None
    return machine


def test_a_driver_of_today_is_read_whole() -> None:
    machine = read(CAPTURE)
    first, second = machine.gpus
    assert first == Gpu(
        id="GPU0",
        index=0,
        name="NVIDIA H200",
        memory=143771 * 2**20,
        memory_used=0,
        pcie=Pcie(generation=5, width=16, generation_max=5, width_max=16),
        uuid="GPU-00000000",
        bus_id="0000:00:06.0",
        ecc=True,
        ecc_uncorrected=0,
        throttle=(),
        processes=(),
        fabric_state="completed",
        utilization=0.0,
        compute_mode="Default",
        power=76.12,
    )
    assert (second.id, second.bus_id) == ("GPU1", "0000:00:07.0")
    assert (machine.software.driver, machine.software.cuda_driver) == ("580.159.04", "13.0")
    assert machine.host.virtual is True


def test_a_driver_of_2018_is_read_whole() -> None:
    machine = read(OLD)
    assert machine.gpus == (
        Gpu(
            id="GPU0",
            index=0,
            name="Tesla V100-PCIE-16GB",
            memory=16160 * 2**20,
            memory_used=10 * 2**20,
            pcie=Pcie(generation=1, width=8, generation_max=3, width_max=16),
            uuid="GPU-1",
            bus_id="0000:3b:00.0",
            ecc=True,
            ecc_uncorrected=3,
            throttle=("HW Slowdown", "HW Power Brake Slowdown"),
            processes=(
                Process(pid=4711, memory=10 * 2**20, name="python : train"),
                Process(pid=4712, name="/usr/bin/other"),
            ),
        ),
    )
    assert (machine.software.driver, machine.software.cuda_driver, machine.host.virtual) == ("390.30", None, None)


def test_uncorrected_errors_of_sram_and_dram_add_up_and_corrected_ones_do_not_count() -> None:
    text = CAPTURE
    for name, count in (("SRAM Correctable", 5), ("SRAM Uncorrectable Parity", 1), ("DRAM Uncorrectable", 2)):
        text = re.sub(rf"({name}\s+: )0", rf"\g<1>{count}", text, count=1)
    assert [gpu.ecc_uncorrected for gpu in read(text).gpus] == [3, 0]


@pytest.mark.parametrize("value", ["N/A", "Requested functionality has been deprecated", "Unknown Error", "[N/A]"])
def test_what_is_not_told_is_unknown(value: str) -> None:
    text = re.sub(r"(?m)^(    .*\S.*?) : .*$", rf"\1 : {value}", CAPTURE)
    gpu = read(text).gpus[0]
    assert gpu == Gpu(id="GPU0", index=0, bus_id="0000:00:06.0")


def test_instances_are_named_as_cuda_does_and_the_memory_of_the_whole_gpu_is_its_own() -> None:
    (gpu,) = read(MIG).gpus
    assert gpu.memory == 40960 * 2**20
    assert gpu.mig == (
        MigInstance(uuid="MIG-GPU-5/1/0", memory=20096 * 2**20, gpu_instance=1, compute_instance=0),
        MigInstance(uuid="MIG-GPU-5/2/0", memory=19968 * 2**20, gpu_instance=2, compute_instance=0),
    )


def test_a_section_alone_leaves_the_rest_unknown() -> None:
    text = "GPU 00000000:3B:00.0\n    FB Memory Usage\n        Total : 24576 MiB\n\n"
    assert read(text).gpus == (Gpu(id="GPU0", index=0, bus_id="0000:3b:00.0", memory=24576 * 2**20),)


def test_it_is_said_that_a_text_shows_some_of_the_gpus() -> None:
    machine = read(CAPTURE.replace("Attached GPUs                                          : 2", "Attached GPUs : 8"))
    assert "2 of 8 GPUs" in machine.unknown[0].why
    assert read(CAPTURE).unknown == ()


def test_a_value_that_the_end_of_the_text_may_have_cut_is_unknown() -> None:
    end = OLD.index("GPU-1") + 4
    assert (read(OLD[:end]).gpus[0].uuid, read(OLD[:end]).gpus[0].name) == (None, "Tesla V100-PCIE-16GB")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: re.sub("^", "> ", t, flags=re.MULTILINE),
        lambda t: re.sub("^", "    ", t, flags=re.MULTILINE),
        lambda t: re.sub(" {8}", "\t", t),
        lambda t: f"```\nroot@node:~# nvidia-smi -q\n{t}```\n",
        lambda t: t + t,
    ],
    ids=["crlf", "quote", "indented", "tabs", "fence", "twice"],
)
def test_the_same_text_is_read_through(change: Callable[[str], str]) -> None:
    assert read(change(CAPTURE)).gpus == read(CAPTURE).gpus


@pytest.mark.parametrize("text", ["", "==============NVSMI LOG==============\n", "GPU 0: NVIDIA A100\n"])
def test_a_text_without_a_gpu_is_left_to_others(text: str) -> None:
    assert read_smi_query(text, "a mail") is None
