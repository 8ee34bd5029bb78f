"""Say what a text is, where it holds no link matrix, and what to type instead."""

import re

from advisor.rules.errors import AdvisorError

SAVE = "save one with: nvidia-smi topo -m > topo.txt"

# What the text looks like, first match wins: a pattern, what to call it, what to type next.
KNOWN = (
    (r"\A\s*\Z", "it is empty", SAVE),
    (r"\x00", "it is a binary file", SAVE),
    (r"<system[\s>]|<graphs?[\s>]", "it is an NCCL topology or graph file, which is not read yet", SAVE),
    (r"\bLink \d+: ", "it is the output of `nvidia-smi nvlink`", SAVE),
    (r"\b(?:CNS|GNS|TNS)\b|\bX\s+OK\b|\bOK\s+X\b", "it is the output of `nvidia-smi topo -p2p`", SAVE),
    (r"ROCm|rocm-smi|\bXGMI\b", "it is the output of `rocm-smi`, which is not read yet", "describe it: '8x mi300x'"),
    (r"NVSMI LOG|NVIDIA-SMI \d", "it is the output of `nvidia-smi` without `topo -m`", SAVE),
    (
        r"must be used in conjunction|Invalid combination|Unknown command|Usage: nvidia-smi",
        "it is an error of nvidia-smi",
        SAVE,
    ),
    (r"couldn't communicate with the NVIDIA driver|command not found", "nvidia-smi did not run there", SAVE),
    (r"\bGPU\d+\b", "it names GPUs, but no header line stands before rows of codes such as NV12 or SYS", SAVE),
)


def refusal(text: str) -> AdvisorError:
    """Make the error for a text without a matrix."""
    for pattern, looks, hint in KNOWN:
        if re.search(pattern, text):
            return AdvisorError(f"this text holds no link matrix: {looks}", hint)
    return AdvisorError("this text holds no link matrix of `nvidia-smi topo -m`", SAVE)
