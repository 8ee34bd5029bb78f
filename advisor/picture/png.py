"""Turn a drawn picture into pixels."""

from typing import Any

from advisor.picture.svg import INSTALL
from advisor.picture.words import FONTS
from advisor.rules.errors import AdvisorError

ZOOM = 2  # pixels of a picture for one of its units: sharp on a slide

_LETTER = "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'><text y='16' font-family='{}'>{}</text></svg>"


def png_of(svg: str) -> bytes:
    """Render an SVG. Raises AdvisorError where resvg_py is not installed, and where no font for its text is found."""
    try:
        import resvg_py
    except ImportError as error:
        raise AdvisorError("a .png needs the resvg_py package", f"{INSTALL}, or write an .svg") from error
    if not _has_font(resvg_py):
        raise AdvisorError(
            "no font for the text of the picture is installed here",
            "install one (Debian and Ubuntu: apt install fonts-dejavu-core), or write an .svg",
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM))


def _has_font(resvg: Any) -> bool:
    """Draw a letter and see: where it finds no font, resvg leaves text out without a word."""
    letter, nothing = (resvg.svg_to_bytes(svg_string=_LETTER.format(FONTS, text)) for text in ("M", ""))
    return bool(letter != nothing)
