"""Say what a text is, where none of the readers finds anything in it, and what to type instead."""

import re

from advisor.rules.errors import AdvisorError

LOOKED_AT = 100_000  # characters
SAVE = "save one with: nvidia-smi topo -m > topo.txt"
QUERY = "save it with: nvidia-smi -q > gpus.txt"

# What the text looks like, first match wins: a pattern, what to call it, what to type next.
KNOWN = (
    (r"\A\Z", "it is empty", SAVE),
    (r"\x00", "it is a binary file", SAVE),
    (r"<nvidia_smi_log>", "it is the XML of `nvidia-smi -q -x`; give the text", QUERY),
    (r"<system[\s>]|<graphs?[\s>]", "it is an NCCL topology or graph file without its elements", SAVE),
    (
        r"\bLink \d+: |all links are in[Aa]ctive",
        "it is the output of `nvidia-smi nvlink` without lines such as `GPU 0: NVIDIA A100` and `Link 0: 25 GB/s`",
        "save it with: nvidia-smi nvlink -s > nvlink.txt",
    ),
    (
        r"\b(?:CNS|GNS|TNS)\b|\bX\s+OK\b|\bOK\s+X\b",
        "it is the output of `nvidia-smi topo -p2p` without its header line",
        "save it with: nvidia-smi topo -p2p r > p2p.txt",
    ),
    (
        r"ROCm|rocm-smi|\bXGMI\b|ROCM",
        "it is the output of `rocm-smi` without a matrix of `--showtopo`",
        "save one with: rocm-smi --showtopo > topo.txt",
    ),
    (r"NVSMI LOG", "it is the output of `nvidia-smi -q` without the lines of a GPU", QUERY),
    (r"NVIDIA-SMI \d", "it is the output of `nvidia-smi` without `topo -m`", SAVE),
    (
        r"PCI bridge: |VGA compatible controller: ",
        "it is the output of `lspci` without ACS",
        "save it with: sudo lspci -vvv",
    ),
    (r"\AFilesystem\s", "it is the output of `df` without /dev/shm", "save it with: df -h /dev/shm"),
    (
        r"Traceback \(most recent|torch\.distributed",
        "it is a run's output without lines of NCCL",
        "run it once more with NCCL_DEBUG=INFO",
    ),
    (
        r"must be used in conjunction|Invalid combination|Unknown command|Usage: nvidia-smi",
        "it is an error of nvidia-smi",
        SAVE,
    ),
    (r"couldn't communicate with the NVIDIA driver|command not found", "nvidia-smi did not run there", SAVE),
    (r"\bGPU\d+\b", "it names GPUs, but no header line stands before rows of codes such as NV12 or SYS", SAVE),
)


def refusal(text: str) -> AdvisorError:
    """Make the error for a text of which nothing could be read."""
    text = text.lstrip()[:LOOKED_AT]
    for pattern, looks, hint in KNOWN:
        if re.search(pattern, text):
            return AdvisorError(f"this text holds no link matrix: {looks}", hint)
    return AdvisorError(
        "this text holds no link matrix of `nvidia-smi topo -m`, nor another output that is known", SAVE
    )
