"""Read what `nvidia-smi topo -p2p` prints: which GPU can reach which, in each direction."""

import re
from typing import Literal

from advisor.probe.text.paste import plain
from advisor.probe.text.square import find_squares, layout
from advisor.rules.machine import Gpu, Machine, PeerAccess, Unknown

Capability = Literal["read", "write", "nvlink", "atomics", "pcie"]
CAPABILITIES: dict[str, Capability] = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}
STATUSES = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")  # of the legend that nvidia-smi prints below

_TITLE = rf"-{{1,2}}p2p(?:_?status)?[ =]{{1,9}}['\"]?[{''.join(CAPABILITIES)}]\w{{0,9}}"
_MATRIX = layout(_TITLE, "|".join(STATUSES), "X")


def read_peer_access(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs and their peer access; None where the text holds no such matrix.

    A matrix without its command is taken as that of `-p2p r`. Of two with one capability the first is taken.
    """
    if "GPU" not in text:
        return None
    found: dict[tuple[str, str, Capability], str] = {}
    gpus: dict[str, Gpu] = {}
    gaps: list[str] = []
    seen: set[Capability] = set()
    for square in find_squares(plain(text), _MATRIX):
        if not square.cells:
            continue
        capability = _capability(square.title)
        if capability in seen:
            gaps.append(f"the text holds several matrices of `topo -p2p {capability[0]}`; the first was taken")
            continue
        seen.add(capability)
        gpus |= {gpu: Gpu(id=gpu, index=int(gpu.removeprefix("GPU"))) for gpu in square.gpus}
        gaps += [
            f"cells are missing inside the row of {gpu}; what could not be placed was left out" for gpu in square.lost
        ]
        found |= {(a, b, capability): status for (a, b), status in square.cells.items()}
    if not found:
        return None
    return Machine(
        gpus=tuple(sorted(gpus.values(), key=lambda gpu: gpu.index)),
        peer_access=tuple(
            PeerAccess(a=a, b=b, capability=capability, status=status) for (a, b, capability), status in found.items()
        ),
        unknown=tuple(Unknown(what="peer access", why=why) for why in dict.fromkeys(gaps)),
        source=source,
    )


def _capability(title: str) -> Capability:
    letter = re.search(rf"[ ='\"]([{''.join(CAPABILITIES)}])", title)
    return CAPABILITIES[letter[1]] if letter else "read"
