"""The page of a rule as text, and the list of all rules."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.markdown import Markdown

from advisor.report.layout import Column, Grid

COLUMNS = (Column("code"), Column("name"), Column("what it finds", folds=True))


def page_report(code: str, name: str, page: str) -> RenderableType:
    """Set the page under a title of its code and name."""
    return Markdown(f"# {code} {name}\n\n{page}")


def list_report(rows: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Show code, name and first line of each rule."""
    return Grid(COLUMNS, rows)
