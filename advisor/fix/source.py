"""A source file as a concrete syntax tree: finding nodes by line, and editing them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

Edit = Callable[[Any], Any]  # from a node, the edits inside it made, to what stands in its place
Edits = dict[cst.CSTNode, list[Edit]]


class Source:
    """A module with the lines and the parents of its nodes. Raises ParserSyntaxError where LibCST can't read it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        wrapper = MetadataWrapper(cst.parse_module(content), unsafe_skip_copy=True)
        self.module = wrapper.module
        self._places = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)

    @property
    def exact(self) -> bool:
        """Say whether the tree spells the file as it is; if not, an edit would change more than it means to."""
        return self.module.bytes == self.content

    def lines(self, node: cst.CSTNode) -> range:
        """Return the lines from the first to the last of a node."""
        place = self._places[node]
        return range(place.start.line, place.end.line + 1)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node lies in, the innermost first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def calls(self) -> Iterator[cst.Call]:
        """Yield all calls, in the order of their first character."""
        yield from sorted(self._of(cst.Call), key=lambda call: (self.lines(call)[0], self._places[call].start.column))

    def calls_at(self, line: int, *names: str) -> list[cst.Call]:
        """List the calls that begin on a line, or lie on it, of functions whose last name is one of these."""
        calls = [call for call in self.calls() if last_name(call.func) in names]
        begin = [call for call in calls if self.lines(call.func)[-1] == line]
        return begin or [call for call in calls if line in self.lines(call)]

    def assignments(self) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, cst.SimpleStatementLine]]:
        """Yield target, value and statement of each assignment to one target, from the first line to the last."""
        for node in sorted(self._of(cst.Assign, cst.AnnAssign), key=lambda node: self.lines(node)[0]):
            targets = [part.target for part in node.targets] if isinstance(node, cst.Assign) else [node.target]
            statement = self.statement_of(node)
            if len(targets) == 1 and node.value is not None and statement is not None:
                yield targets[0], node.value, statement

    def names(self, name: str) -> Iterator[cst.Name]:
        """Yield where a name stands for a value: not for an attribute, and not for an argument's keyword."""
        for node in self._of(cst.Name):
            parent = self._parents.get(node)
            apart = (isinstance(parent, cst.Attribute) and parent.attr is node) or (
                isinstance(parent, cst.Arg) and parent.keyword is node
            )
            if node.value == name and not apart:
                yield node

    def loops(self) -> Iterator[cst.For]:
        """Yield all `for` loops, from the first line to the last."""
        yield from sorted(self._of(cst.For), key=lambda loop: self.lines(loop)[0])

    def _of(self, *kinds: type[Any]) -> list[Any]:
        return [node for node in self._places if isinstance(node, kinds)]

    def statement_of(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the line of simple statements that a node lies in."""
        return next((found for found in self.above(node) if isinstance(found, cst.SimpleStatementLine)), None)

    def with_edits(self, edits: Mapping[cst.CSTNode, Sequence[Edit]]) -> bytes:
        """Return the file with the edits made."""
        return self.module.visit(_Editor(edits)).bytes


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: Mapping[cst.CSTNode, Sequence[Edit]]) -> None:
        super().__init__()
        self.edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        for edit in self.edits.get(original_node, ()):
            updated_node = edit(updated_node)
        return updated_node


def last_name(node: cst.BaseExpression) -> str | None:
    """Return `load` of `torch.load`, of `load` itself as well."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else None


def argument(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument that is passed by a name."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def with_argument(call: cst.Call, name: str, value: str) -> cst.Call:
    """Add an argument by name at the end of a call, laid out as the others are."""
    new = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not call.args:
        return call.with_changes(args=[new])
    *others, last = call.args
    if not isinstance(last.comma, cst.Comma):  # f(a)
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
            whitespace_after_arg=cst.SimpleWhitespace(""),
        )
        return call.with_changes(args=[*others, last, new])
    end = last.comma.whitespace_after  # f(a,) and, on lines of their own, the arguments of a formatter
    between: Any = others[-1].comma if others else None
    gap = between.whitespace_after if isinstance(between, cst.Comma) else call.whitespace_before_args
    if isinstance(end, cst.ParenthesizedWhitespace) and isinstance(gap, cst.ParenthesizedWhitespace):
        gap = end.with_changes(indent=gap.indent, last_line=gap.last_line)  # keeps the comment behind the last argument
        end = end.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    elif not isinstance(gap, cst.ParenthesizedWhitespace):
        gap = cst.SimpleWhitespace(" ")
    last = last.with_changes(comma=last.comma.with_changes(whitespace_after=gap))
    return call.with_changes(args=[*others, last, new.with_changes(comma=cst.Comma(whitespace_after=end))])


def adding(name: str, value: str) -> Edit:
    """Make the edit that adds an argument."""
    return lambda call: with_argument(call, name, value)
