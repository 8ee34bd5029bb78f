"""What is shown of a rank whose GPU has failed: not the frames of native code."""

from pathlib import Path

from advisor.executor.fault import fault_of
from advisor.executor.folder import RunFolder
from advisor.executor.process import Ended
from advisor.executor.records import Failed, RankRecord
from advisor.rules.plan import Launcher, Plan

TORCHRUN = """Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 101)
"""
ASSERTION = (
    'IndexKernel.cu:111: operator(): block: [0,0,0] Assertion `index < sizes[i] && "index out of bounds"` failed.'
)
ERROR = "torch.AcceleratorError: CUDA error: device-side assert triggered"
FRAMES = "\n".join(f"frame #{i}: c10d::Watchdog::run() + 0x{i} (0x7f in libtorch_cuda.so)" for i in range(9))
SAID = f"""{ASSERTION}
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 12, in <module>
[rank1]:     torch.cuda.synchronize()
[rank1]: {ERROR}
[rank1]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1

terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Exception raised from query at CUDAEvent.h:111 (most recent call first):
{FRAMES}
"""


def test_a_failed_gpu_is_told_by_the_scripts_error_and_the_assertion(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    (folder.logs / "1.err").write_text(SAID)
    gpus = ("GPU0", "GPU1")
    plan = Plan(strategy="ddp", gpus=gpus, launcher=Launcher(nproc_per_node=2, device="cuda"))
    ranks = [RankRecord(rank=0, pid=100), RankRecord(rank=1, pid=101, failed=Failed(time=0.0, error=ERROR))]
    fault = fault_of(Ended(torchrun=1, signal=None), TORCHRUN, ranks, folder, plan=plan, predicted=None)
    assert fault is not None
    assert ERROR in fault.what
    assert "SIGABRT" in fault.what
    assert fault.details[0] == ASSERTION
    assert not [line for line in fault.details if line.startswith(("frame", "Exception raised"))]
    assert sum("CUDA_LAUNCH_BLOCKING" in line for line in fault.details) == 1
    assert "label beyond the classes" in fault.todo[0]
