"""Numbers as people type them, and options that several commands share."""

import argparse
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from advisor.rules.errors import AdvisorError

_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises an AdvisorError instead of printing and leaving."""

    def error(self, message: str) -> NoReturn:
        raise AdvisorError(message, f"{self.prog} --help shows what it takes")


def count(text: str) -> int:
    """Read a count of things, at least one: 13e9, 13b, 350M, 4096."""
    return int(_scaled(text, _COUNT, "a count such as 13e9, 13b or 350M"))


def size(text: str) -> int:
    """Read a size in bytes, at least one: 24GB is 24e9, 24GiB is 24 x 2^30."""
    return int(_scaled(text.strip().rstrip("bB") or text, _BYTES, "a size such as 24GB or 40GiB"))


def span(text: str) -> float:
    """Read a time in seconds, at least one: 120, 120s, 2min."""
    return _scaled(text, _SECONDS, "a time such as 120s or 2min")


def names(text: str) -> tuple[str, ...]:
    """Read a list of names separated by commas."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def one_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Make a reader of comma-separated names that refuses the ones it does not know."""

    def read(text: str) -> tuple[str, ...]:
        for name in names(text):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names(text)

    return read


ALLOWED = {"cpu-offload": "cpu-offload", "bf16-gradients": "bf16-gradients (sent in 16 bits)"}


def add_allow(parser: argparse._ActionsContainer, **more: str) -> None:
    """Add the option that permits what is never done unasked; `more` names and words beside what all commands have."""
    allowed = ALLOWED | {name.replace("_", "-"): words for name, words in more.items()}
    parser.add_argument(
        "--allow",
        type=one_of(*allowed),
        default=(),
        metavar="NAME,...",
        help=f"changes you permit: {', '.join(allowed.values())}",
    )


def add_output(parser: argparse._ActionsContainer, endings: Iterable[str] = ()) -> None:
    """Add the options that say how the answer is given; `endings` are those of the files that -o can write as well."""
    others = "".join(f"{ending}, " for ending in endings)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write it to FILE: {others}.json as --json, else the report",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the verdict line only")
    parser.set_defaults(endings=(*endings, ".json"))


def add_machine(parser: argparse._ActionsContainer) -> None:
    """Add the options that say which machine is meant."""
    parser.add_argument(
        "--machine",
        metavar="SOURCE",
        action="append",
        help="a saved probe; a text of nvidia-smi, rocm-smi or NCCL; a name, p4d.24xlarge or '2x dgx h100' (`advisor "
        "probe --machine list` has all); or words, '4x a10g pcie3x8'. Several of one machine are merged (default: "
        "this machine)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU's name, where the source gives none: a10g, h100, 4090")
    parser.add_argument("--gpu-memory", metavar="BYTES", type=size, help="memory of one GPU: 24GB, 80GiB")


def _scaled(text: str, units: dict[str, float], wanted: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    number = float(match[1]) * units[unit]
    if not 1 <= number <= 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give {wanted}, at least 1")
    return number
