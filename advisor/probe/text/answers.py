"""Read a terminal's dialogue, a prompt with a command and its answer below: `$ ulimit -l` and `8192`."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from advisor.probe.iommu import iommu_mode
from advisor.probe.merge import merge
from advisor.probe.steering import steers
from advisor.probe.text.paste import plain
from advisor.rules.machine import Host, Machine, Nic, Software

LONGEST = 4096  # characters of an answer
VIRTUAL = (
    "kvm",
    "qemu",
    "vmware",
    "microsoft",
    "oracle",
    "xen",
    "amazon",
    "google",
    "parallels",
    "bhyve",
    "bochs",
    "vm-other",
)
CONTAINERS = ("docker", "podman", "lxc", "lxc-libvirt", "systemd-nspawn", "rkt", "openvz", "wsl", "container-other")

_SERVICE = "nvidia-fabricmanager.service"
_PROMPT = re.compile(r"^(?:[\w.@:~/()\[\] -]{0,80}[$#%] |> )(\S[^\n]{0,300})$", re.MULTILINE)


class Answer(NamedTuple):
    """What a command says: its pattern, and what to make of its match and of the answer, None for nothing."""

    command: str
    read: Callable[[re.Match[str], str], Machine | None]


def read_answers(text: str, source: str) -> Machine | None:
    """Build a machine of what the answers in a text tell; None where they tell nothing."""
    text = plain(text)
    parts = [part for command, answer in _dialogue(text) if (part := _read(command, answer)) is not None]
    if _SERVICE in text and (state := _fabric_manager_state(text[text.index(_SERVICE) :][:LONGEST])):
        parts.append(Machine(software=Software(fabric_manager=state)))  # also without the command
    if not parts:
        return None
    machine = merge(parts)
    return Machine(
        host=machine.host,
        software=machine.software,
        nics=machine.nics,
        environment=machine.environment,
        source=source,
    )


def _dialogue(text: str) -> Iterator[tuple[str, str]]:
    prompts = list(_PROMPT.finditer(text))
    ends = [prompt.start() for prompt in prompts[1:]] + [len(text)]
    for prompt, end in zip(prompts, ends, strict=False):
        yield prompt[1].strip().removeprefix("sudo "), text[prompt.end() : end].strip()[:LONGEST]


def _read(command: str, answer: str) -> Machine | None:
    for known in ANSWERS:
        match = re.fullmatch(known.command, command)
        if match and answer:
            return known.read(match, answer)
    return None


def _limit(match: re.Match[str], answer: str) -> Machine | None:
    """Read `ulimit -l` (locked memory), -n (open files) or -s (stack); sizes are in KiB."""
    field = {"l": "memlock", "n": "open_files", "s": "stack"}[match[1]]
    number = re.match(r"(unlimited|\d{1,15})[ \t\r]*$", answer)
    if number is None:
        return None
    value: Any = -1 if number[1] == "unlimited" else int(number[1]) * (1 if field == "open_files" else 1024)
    return Machine(host=Host(**{field: value}))


def _fabric_manager(_: re.Match[str], answer: str) -> Machine | None:
    state = _fabric_manager_state(answer)
    return Machine(software=Software(fabric_manager=state)) if state else None


def _fabric_manager_state(text: str) -> Literal["active", "inactive", "absent"] | None:
    """Tell from what systemctl prints, of which the line `Active:` counts, if there is one."""
    line = re.search(r"Active: (\w+)", text)
    lower = (line[1] if line else text).lower()
    if "could not be found" in lower or "not-found" in lower:
        return "absent"
    if re.search(r"inactive|failed|failure|activating", lower):
        return "inactive"
    return "active" if re.search(r"\bactive\b", lower) else None


def _virtualization(_: re.Match[str], answer: str) -> Machine | None:
    word = answer.split(maxsplit=1)[0]
    if word not in (*VIRTUAL, *CONTAINERS, "none"):
        return None
    if word in CONTAINERS:
        return Machine(host=Host(container=True))
    return Machine(host=Host(virtual=word != "none"))


def _command_line(_: re.Match[str], answer: str) -> Machine | None:
    line = answer.splitlines()[0].strip()
    return Machine(host=Host(kernel_command_line=line, iommu=iommu_mode(line)))


def _rdma_devices(_: re.Match[str], answer: str) -> Machine | None:
    return Machine(host=Host(rdma_devices="uverbs" in answer if "No such file" not in answer else False))


def _link_downed(match: re.Match[str], answer: str) -> Machine | None:
    number = re.match(r"(\d{1,18})[ \t\r]*$", answer)
    return Machine(nics=(Nic(id=match[1], name=match[1], link_downed=int(number[1])),)) if number else None


def _variable(match: re.Match[str], answer: str) -> Machine | None:
    name, value = match[1], answer.splitlines()[0].strip()
    return Machine(environment={name: value}) if steers(name) else None


def _driver(_: re.Match[str], answer: str) -> Machine | None:
    version = re.search(r"\b(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\b", answer)
    return Machine(software=Software(driver=version[1])) if version else None


def _mps(_: re.Match[str], answer: str) -> Machine | None:
    return Machine(
        software=Software(mps="nvidia-cuda-mps-control" in answer or re.match(r"\d+[ \t\r]*$", answer) is not None)
    )


def _topology_file(match: re.Match[str], answer: str) -> Machine | None:
    """Take the file that `ls` lists where vendors put those for NCCL; of several it is not known which one fits."""
    names = re.findall(r"(?:^|(?<=\s))([\w./-]{1,200}\.xml)(?=\s|$)", re.sub(r" -> \S+", "", answer))
    if "No such file" in answer or len(names) != 1:
        return None
    folder = re.sub(r"/[^/]*[*.?][^/]*$|/$", "", match[1])
    return Machine(host=Host(topology_file=names[0] if names[0].startswith("/") else f"{folder}/{names[0]}"))


_VENDORS = r"/(?:var/run/nvidia-topologyd|opt/microsoft|etc/nccl|etc/crusoe/nccl_topo)(?:[-/]\S{0,200})?"
_CAT = r"(?:cat\s+)?"
ANSWERS = (
    Answer(r"ulimit -(?:H|S)?([lns])", _limit),
    Answer(r"systemctl (?:is-active|status) nvidia-fabricmanager(?:\.service)?.*", _fabric_manager),
    Answer(r"systemd-detect-virt.*", _virtualization),
    Answer(_CAT + r"/proc/cmdline", _command_line),
    Answer(r"ls (?:-\w+ )?/dev/infiniband/?", _rdma_devices),
    Answer(_CAT + r"/sys/class/infiniband/(\w{1,32})/ports/\d+/counters/link_downed", _link_downed),
    Answer(r"(?:echo|printenv) \$?\{?([A-Z]\w{2,99})\}?", _variable),
    Answer(r"(?:cat )?/proc/driver/nvidia/version|modinfo nvidia.*|nvidia-smi --query-gpu=driver_version.*", _driver),
    Answer(rf"ls (?:-\w+ ){{0,3}}({_VENDORS})", _topology_file),
    Answer(r"(?:ps|pgrep)\b.*mps.*", _mps),
)
