"""The script uses torch.nn.DataParallel: one process drives all GPUs.

## What it finds
A script that calls `torch.nn.DataParallel` and neither DistributedDataParallel nor FSDP, on a machine with several
GPUs.

## Why it matters
DataParallel copies the model to all GPUs and collects the outputs on the first in every step, from one Python process.
Measured on two H200 with a 350M GPT, two GPUs gave 0.52 times the throughput of one. A user of two RTX 3090 went from
52 to 125 s per iteration by making the second GPU visible.

## What to do
Start one process per GPU and wrap with DistributedDataParallel, with a DistributedSampler for the data:
`torchrun --nproc-per-node=2 train.py`, or `advisor apply train.py` which starts them itself.

## Source
docs/models.md for the measurement; https://github.com/zai-org/ChatGLM-6B/issues/595;
https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html, which recommends DDP even on one host
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

NAMES = (
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.nn.parallel.data_parallel",
)
MEASURED = 0.52  # of one GPU's throughput, on two
ALONE = ("plain", "unknown", "spawn")  # nothing else distributes the model


@rule("PAR111", "data-parallel-in-one-process")
def check(case: Case) -> Iterator[Finding]:
    script, gpus = case.script, len(case.plan.gpus if case.plan else case.machine.gpus)
    used = next((name for name in NAMES if script and name in script.uses), None)
    trains = case.source is not None and bool(case.source.backwards)
    unseen = trains and not case.machine.gpus  # the script is checked without a machine
    if script is None or used is None or script.kind not in ALONE or (gpus < 2 and not unseen):
        return
    driven = "all GPUs" if unseen else f"all {plural(gpus, 'GPU')}"
    yield Finding(
        code="PAR111",
        name="data-parallel-in-one-process",
        severity="warning",
        message=(
            f"{used.split('.')[-1]} drives {driven} from one process; measured on two GPUs it gave "
            f"{MEASURED} times the throughput of one"
        ),
        facts={"gpus": None if unseen else gpus, "measured_on_two": MEASURED},
        remedy="wrap the model with DistributedDataParallel and start one process per GPU: advisor apply, or torchrun",
        file=script.path,
        line=script.lines.get(used),
    )
