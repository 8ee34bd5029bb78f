"""The checklist, answered, as text."""

from rich.console import RenderableType
from rich.text import Text

from advisor.report.layout import labelled, one_line, prose, section, stack
from advisor.rules.checklist import Checklist


def checklist_report(checklist: Checklist) -> RenderableType:
    """Set the plan in a sentence, then each question with its answers."""
    items = [
        section(
            f"{number}. {item.title}", prose(item.question, "dim"), labelled([("-", answer) for answer in item.answers])
        )
        for number, item in enumerate(checklist.items, 1)
    ]
    return stack(prose(checklist.summary), *items)


def checklist_verdict(checklist: Checklist) -> Text:
    return one_line(Text(checklist.summary))
