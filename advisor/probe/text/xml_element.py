"""Take one XML element out of a text that may hold more: a prompt, the `cat` command, a fence around it."""

import re
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from advisor.rules.errors import AdvisorError

LARGEST = 16 * 2**20  # characters; NCCL's dump of 16 GPUs has 20 kB
DEEPEST = 64  # levels; a tree of PCI switches has 10
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class _TooDeepError(Exception):
    pass


class _Shallow(TreeBuilder):
    """Builds a tree of bounded depth, as deep ones would exhaust the stack of whoever walks them."""

    depth = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _TooDeepError
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self.depth -= 1
        return super().end(tag)


def find_element(text: str, tag: str, holds: str) -> tuple[Element, int] | None:
    """Parse the first element called `tag` in which the string `holds` stands, and count those that follow it.

    What stands before it is left out, document types with their entities too. None where there is no such element.
    Raises AdvisorError, with the line, where it is broken or cut.
    """
    start = text.rfind(f"<{tag}", 0, max(0, text.find(holds)))
    if start < 0 or text[start + len(tag) + 1] not in " \t\r\n>":
        return None
    end = text.find(f"</{tag}>", start)
    whole = text[start:] if end < 0 else text[start : end + len(tag) + 3]
    if len(whole) > LARGEST:
        raise AdvisorError(f"the <{tag}> element is larger than {LARGEST >> 20} MiB", _again(tag))
    element = _parse(_CONTROL.sub("", _ESCAPE.sub("", whole)), tag, 1 + text.count("\n", 0, start))
    return element, 0 if end < 0 else text.count(f"<{tag} ", end)


def _parse(whole: str, tag: str, first_line: int) -> Element:
    parser = XMLParser(target=_Shallow())
    try:
        parser.feed(whole)
        root: Element = parser.close()
    except _TooDeepError:
        raise AdvisorError(f"the <{tag}> element nests more than {DEEPEST} levels deep", _again(tag)) from None
    except ParseError as error:
        line = first_line + error.position[0] - 1
        cut = "no element found" in str(error) or "unclosed" in str(error)
        what = "ends too early" if cut else f"is broken: {re.sub(r': line .*', '', str(error))}"
        raise AdvisorError(f"the <{tag}> element {what}, at line {line}", _again(tag)) from error
    return root


def _again(tag: str) -> str:
    name = "NCCL_TOPO_DUMP_FILE" if tag == "system" else "NCCL_GRAPH_DUMP_FILE"
    return f"write the file again: {name}=file.xml torchrun ..."
