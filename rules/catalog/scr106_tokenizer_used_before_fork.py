"""A fast tokenizer is used before the loader's workers are forked.

## What it finds
A tokenizer that is called in the script, then a DataLoader with `num_workers`, and no TOKENIZERS_PARALLELISM.

## Why it matters
The tokenizer has started threads; the forked workers would hang in their locks. The library notices and switches its
parallelism off, with a warning on each rank and epoch, and tokenizing in the workers gets slower.

## What to do
`os.environ["TOKENIZERS_PARALLELISM"] = "false"` at the top of the script, or tokenize before training.

## Source
huggingface/tokenizers, `tokenizers/src/utils/parallelism.rs`; rule CPU112
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source

RULE = ("SCR106", "tokenizer-used-before-fork")
VARIABLE = "TOKENIZERS_PARALLELISM"


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or any(VARIABLE in line for m in case.source.modules for line in m.lines):
        return
    used = _first_use(case.source)
    for event in case.source.events if used is not None else ():
        made = event.kind == "call" and event.value.role == "loader" and event.value.node is event.node
        workers = event.argument("num_workers", 5) if made else None
        forks = workers is not None and isinstance(workers.const, int) and workers.const > 0
        if not forks or event.index < (used or 0) or "multiprocessing_context" in event.words:
            continue
        yield found(
            case,
            RULE,
            "info",
            event,
            happens="the tokenizer has been used before these workers are forked: its parallelism is switched off, "
            "with a warning on each rank",
            remedy='os.environ["TOKENIZERS_PARALLELISM"] = "false" at the top of the script',
        )
        return


def _first_use(source: Source) -> int | None:
    uses = (e for e in source.events if e.receiver is not None and e.receiver.role == "tokenizer" and e.kind == "call")
    return next((e.index for e in uses if not e.name.endswith((".from_pretrained", ".save_pretrained"))), None)
