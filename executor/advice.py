"""What to do about a failure, told by its words or its signal."""

import re
import signal

import psutil

from advisor.rules.format import memory
from advisor.rules.plan import Plan, Predicted

OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(CUDA|HIP) out of memory")
PORT_TAKEN = re.compile(r"EADDRINUSE|Address already in use", re.I)
SHARED_MEMORY = re.compile(
    r"/dev/shm|shared memory|killed by signal: Bus error|torch_shm_manager|unable to mmap \d+ bytes from file </torch_",
    re.I,
)
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
DEVICE_ASSERT = re.compile(r"device-side assert")
ILLEGAL_ACCESS = re.compile(r"illegal memory access")
LOADER_KILLED = re.compile(r"DataLoader worker .* (is|are) killed by signal: Killed|exited unexpectedly")
PORT = re.compile(r"port:? (\d+)|:(\d{4,5})\b")
DMESG = "sudo dmesg -T | grep -i -E 'killed process|out of memory'"


def advise(said: str, status: int, plan: Plan, predicted: Predicted | None) -> tuple[str, ...]:
    """Return what to try, the likeliest first; `status` is negative for a signal."""
    if OUT_OF_MEMORY.search(said):
        return _out_of_gpu_memory(plan, predicted)
    if PORT_TAKEN.search(said):
        return _port_taken(said)
    for pattern, words in BY_WORDS:
        if pattern.search(said):
            return words
    return BY_SIGNAL.get(-status, ())


def _out_of_gpu_memory(plan: Plan, predicted: Predicted | None) -> tuple[str, ...]:
    if predicted is None:
        planned = "the plan has no prediction of its memory: advisor recommend --params N says what fits"
    else:
        cost = predicted.memory
        planned = f"the plan predicts {memory(cost.total)} of {memory(cost.available)} per rank"
    micro = "" if plan.micro_batch is None else f" (now {plan.micro_batch} x {plan.accumulation})"
    lines = [planned, f"a smaller micro-batch with more accumulation keeps the global batch{micro}"]
    if plan.activation_checkpointing == "none":
        lines.append("activation checkpointing: torch.utils.checkpoint around each block, use_reentrant=False")
    if plan.activation_checkpointing == "selective":
        lines.append('activation_checkpointing="full" in the plan recomputes every block, not every second one')
    if plan.strategy in ("single", "ddp"):
        lines.append("shard the states: advisor recommend --params N --only fsdp")
    lines.append("see who else is on the GPU: nvidia-smi")
    return tuple(lines)


def _port_taken(said: str) -> tuple[str, ...]:
    found = PORT.search(said)
    port = int(found[1] or found[2]) if found else None
    holder = None if port is None else _holder(port)
    who = f"port {port} is held by {holder}" if holder else f"see who holds port {port or 'N'}: ss -ltnp"
    free = "let torchrun choose: init_process_group() without init_method, which reads MASTER_ADDR and MASTER_PORT"
    return (who, free)


def _holder(port: int) -> str | None:
    try:
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                words = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({words[:60]}): kill {connection.pid}"
    except psutil.Error:
        return None
    return None


BY_WORDS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (
        SHARED_MEMORY,
        (
            "/dev/shm is full or too small: df -h /dev/shm; ls -l /dev/shm shows what earlier runs have left",
            "in a container: docker run --shm-size=16g, or --ipc=host; Kubernetes: an emptyDir with medium: Memory",
            "fewer data loader workers need less of it",
        ),
    ),
    (
        DEVICE_ASSERT,
        (
            "often an index out of range: a label beyond the classes, a token beyond the vocabulary, a position beyond "
            "the longest",
            "CUDA_LAUNCH_BLOCKING=1 in the environment makes the traceback name the line; so does one GPU, or a CPU",
        ),
    ),
    (
        ILLEGAL_ACCESS,
        (
            "CUDA_LAUNCH_BLOCKING=1 in the environment makes the traceback name the line",
            "look at kernels and extensions of your own first: compute-sanitizer names the access",
        ),
    ),
    (DISK_FULL, ("a disk is full: df -h . /tmp shows which", "free space there, or give --run-dir another disk")),
    (
        LOADER_KILLED,
        (f"a data loader's worker was killed, often by the kernel's out-of-memory killer: {DMESG}", "fewer workers"),
    ),
)
BY_SIGNAL: dict[int, tuple[str, ...]] = {
    signal.SIGKILL: (
        f"often the kernel's out-of-memory killer: {DMESG}",
        "then use less host memory: fewer data loader workers, fewer ranks, no CPU offload; else see who sent it",
    ),
    signal.SIGBUS: ("often /dev/shm is full: df -h /dev/shm; in a container: docker run --shm-size=16g",),
    signal.SIGSEGV: ("a crash in native code; PYTHONFAULTHANDLER=1 shows the line of Python it was called from",),
    signal.SIGABRT: ("native code gave up; the lines above say why, PYTHONFAULTHANDLER=1 shows the line of Python",),
}
