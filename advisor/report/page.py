"""The page of a rule as text."""

from rich.console import RenderableType
from rich.markdown import Markdown


def page_report(code: str, name: str, page: str) -> RenderableType:
    """Set the page under a title of its code and name."""
    return Markdown(f"# {code} {name}\n\n{page}")
