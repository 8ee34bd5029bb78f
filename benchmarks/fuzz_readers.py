"""Give random bytes and damaged real texts to the readers: each must be read, or refused with an AdvisorError.

Run: python benchmarks/fuzz_readers.py N [SEED]. Exits with 1 if any input crashed a reader; the message holds it.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from advisor.probe.text.readers import machine_from_text
from advisor.rules.errors import AdvisorError

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDERS = ("topologies", "captures/2xh200", "pastes")
LONGEST = 4000  # characters of an input; several matrices, or one GPU of `nvidia-smi -q`
MOST_CHANGES = 8
SHOWN = 2000  # characters of an input that crashed

Change = Callable[[random.Random, str], str]


def noise(chance: random.Random, text: str) -> str:
    """Put random characters in, half of them those of the texts."""
    alphabet = chance.choice(['GPUXNIC0123456789 \t\n:=,-<>/"[]()|.', "".join(map(chr, range(1, 256)))])
    at = chance.randrange(len(text) + 1)
    return text[:at] + "".join(chance.choices(alphabet, k=chance.randrange(20))) + text[at:]


def cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text) + 1)]


def drop(chance: random.Random, text: str) -> str:
    start = chance.randrange(len(text) + 1)
    return text[:start] + text[start + chance.randrange(30) :]


def drop_lines(chance: random.Random, text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if chance.random() < 0.9)


def double(chance: random.Random, text: str) -> str:
    start = chance.randrange(len(text) + 1)
    part = text[start : start + chance.randrange(200)]
    return text[:start] + part * chance.randrange(2, 5) + text[start:]


def swap_digits(chance: random.Random, text: str) -> str:
    return "".join(chance.choice("0123456789") if c.isdigit() and chance.random() < 0.1 else c for c in text)


def lose_newlines(chance: random.Random, text: str) -> str:
    return text.replace("\n", chance.choice(["", " ", "\r\n", "\n> "]))


CHANGES: tuple[Change, ...] = (noise, noise, cut, drop, drop, drop_lines, double, swap_digits, lose_newlines)


def make_input(chance: random.Random, texts: list[str]) -> str:
    """Damage a part of one or two texts, or make a text of random bytes."""
    if chance.random() < 0.15:
        return chance.randbytes(chance.randrange(1000)).decode(errors="replace")
    text = "".join(chance.sample(texts, chance.choice([1, 1, 1, 2])))
    start = 0 if chance.random() < 0.7 else chance.randrange(len(text))
    text = text[start : start + LONGEST]
    for _ in range(chance.randrange(1, MOST_CHANGES)):
        text = chance.choice(CHANGES)(chance, text)
    return text


def main() -> int:
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: python benchmarks/fuzz_readers.py N [SEED]")
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0
    chance = random.Random(seed)
    files = [f for folder in FOLDERS for f in sorted((FIXTURES / folder).iterdir()) if f.suffix in (".txt", ".xml")]
    texts = [file.read_bytes().decode(errors="replace") for file in files]
    outcomes: Counter[str] = Counter()
    slowest, slowest_text = 0.0, ""
    for _ in range(count):
        text = make_input(chance, texts)
        start = time.perf_counter()
        try:
            machine_from_text(text, "fuzz")
            outcomes["read"] += 1
        except AdvisorError:
            outcomes["refused"] += 1
        except Exception as error:
            outcomes["crashed"] += 1
            print(f"CRASH {error!r} on {text[:SHOWN]!r}")
        seconds = time.perf_counter() - start
        if seconds > slowest:
            slowest, slowest_text = seconds, text
    print(f"slowest input, {1e3 * slowest:.0f} ms: {slowest_text[:200]!r}")
    print(json.dumps({"inputs": count, "seed": seed, **{k: outcomes[k] for k in ("read", "refused", "crashed")}}))
    return 1 if outcomes["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
