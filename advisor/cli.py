"""The command line: the only place that prints, and that turns an error into words and an exit code."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from advisor import __version__
from advisor.answer import Answer, Proposal
from advisor.arguments import Parser
from advisor.commands.apply import add_apply
from advisor.commands.check import add_check
from advisor.commands.explain import add_explain
from advisor.commands.probe import add_probe
from advisor.commands.recommend import add_recommend
from advisor.executor.folder import write_whole
from advisor.rules.errors import AdvisorError

if TYPE_CHECKING:
    from rich.console import RenderableType

FAILURE = 2
INTERRUPTED = 130  # as a shell reports Ctrl-C
# names that ask for a picture or a graph; any other unknown ending takes the report as text
PICTURES = {".svg", ".png", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".eps", ".ps", ".dot", ".gv", ".graphml"}
REPORT = "please report it with the output of ADVISOR_DEBUG=1"


def build_parser() -> Parser:
    """Build the parser of all commands."""
    parser = Parser(
        prog="advisor",
        description="Reads a machine's GPU links and picks, explains and runs the strategy for PyTorch training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"advisor {__version__}")
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Parser
    )
    for add in (add_probe, add_recommend, add_apply, add_check, add_explain):
        add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(words)
        refuse_picture(args)
        args.again = shlex.join(["advisor", *words])
        return show(args.run(args), args)
    except AdvisorError as error:
        if os.environ.get("ADVISOR_DEBUG"):
            raise
        print(f"advisor: {error.message}\n{error.hint}", file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or python complains once more at exit
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:  # argparse after --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except Exception as error:
        if os.environ.get("ADVISOR_DEBUG"):
            raise
        print(f"advisor: {type(error).__name__}: {error}\nthis is our fault; {REPORT}", file=sys.stderr)
        return FAILURE


def refuse_picture(args: argparse.Namespace) -> None:
    """Raise an AdvisorError, before anything runs, where the file is to be a picture that this command has not."""
    ending = Path(args.output or "").suffix.lower()
    if ending in PICTURES and ending not in args.endings:
        raise no_picture(args.output, args.endings)


def no_picture(name: str, endings: Iterable[str]) -> AdvisorError:
    """Make the error for a file of a kind that the command, or this answer of it, can't write."""
    *others, last = endings
    can = f"{', '.join(others)} or {last}" if others else last
    return AdvisorError(f"can't write {name}: {Path(name).suffix} is not possible here", f"give -o a name with {can}")


def show(answer: Answer, args: argparse.Namespace) -> int:
    """Write the answer where the options want it, and return its exit code."""
    stream = sys.stderr if answer.to_stderr else sys.stdout
    if args.output:
        write(Path(args.output), answer)
    if args.json:
        stream.write(as_json(answer))
    elif args.quiet:
        stream.write(as_text(answer.verdict(), stream))
    elif not args.output or answer.to_stderr:
        stream.write(answer.plain() if answer.plain else as_text(answer.report(), stream))
    stream.flush()
    if answer.proposal is not None and agrees(answer.proposal):
        return show(answer.proposal.do(), args)
    return answer.code


def agrees(proposal: Proposal) -> bool:
    """Ask on a terminal, unless the options have the answer; without a terminal nothing is agreed to."""
    if proposal.agreed:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{proposal.question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def as_json(answer: Answer) -> str:
    """Spell the document as JSON, indented."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(answer.document), indent=2).decode() + "\n"


def as_text(renderable: "RenderableType", stream: TextIO) -> str:
    """Spell a report for a stream."""
    from advisor.report.console import text_for

    return text_for(stream, renderable)


def write(path: Path, answer: Answer) -> None:
    """Write the answer to a file, whole or not at all, in the format of its ending; without a known one as text."""
    try:
        write_whole(path, content_of(path, answer))
    except OSError as error:
        raise AdvisorError(
            f"can't write {path}: {error.strerror}", "give -o a file in a folder that you may write to"
        ) from error


def content_of(path: Path, answer: Answer) -> bytes:
    """Make the content of a file by its ending: JSON, what the answer has for it, else the report as text."""
    ending = path.suffix.lower()
    if ending == ".json":
        return as_json(answer).encode()
    if ending in answer.files:
        return answer.files[ending]()
    if ending in PICTURES:  # the list of machines is an answer without one
        raise no_picture(str(path), (*answer.files, ".json"))
    from advisor.report.console import PIPE_WIDTH, render

    return render(answer.report(), width=PIPE_WIDTH, colour=False).encode()
