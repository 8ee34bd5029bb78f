"""The files that `advisor probe -o` writes besides JSON and text, by the ending of their name.

Each function imports what it needs when it is called: a command loads this table to say what is possible.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.probe.document import ProbeDocument
    from advisor.rules.fabric import Fabric


def svg_file(probe: "ProbeDocument") -> bytes:
    return _svg(probe).encode()


def png_file(probe: "ProbeDocument") -> bytes:
    from advisor.picture.png import png_of

    return png_of(_svg(probe))


def html_file(probe: "ProbeDocument") -> bytes:
    from advisor.picture.page import page_of

    return page_of(probe.machine, _fabric(probe), probe.findings, title=_title(probe), svg=_svg(probe)).encode()


def dot_file(probe: "ProbeDocument") -> bytes:
    from advisor.picture.graph_files import dot_of

    return dot_of(probe.machine).encode()


def graphml_file(probe: "ProbeDocument") -> bytes:
    from advisor.picture.graph_files import graphml_of

    return graphml_of(probe.machine).encode()


FILES: "dict[str, Callable[[ProbeDocument], bytes]]" = {
    ".svg": svg_file,
    ".png": png_file,
    ".html": html_file,
    ".dot": dot_file,
    ".graphml": graphml_file,
}


def _svg(probe: "ProbeDocument") -> str:
    from advisor.picture.layout import layout
    from advisor.picture.svg import svg_of

    return svg_of(layout(probe.machine, _fabric(probe), _title(probe)))


def _title(probe: "ProbeDocument") -> str:
    from advisor.report.machine import machine_headline

    return machine_headline(probe.machine, probe.fabric)


def _fabric(probe: "ProbeDocument") -> "Fabric":
    from advisor.rules.fabric import fabric_of

    return probe.fabric or fabric_of(probe.machine)
