"""The script uses a fast tokenizer and DataLoader workers, and TOKENIZERS_PARALLELISM is not set.

## What it finds
A script with a tokenizer of `transformers` or `tokenizers` and a DataLoader, without TOKENIZERS_PARALLELISM.

## Why it matters
A fast tokenizer runs threads of its own. If it has been used before the workers fork, the library warns once for each
worker and switches its threads off there, to avoid a deadlock.

## What to do
Export the variable: `false` where the workers tokenize. Or tokenize the data set once, before training.

## Source
https://github.com/huggingface/transformers/issues/5486
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("CPU112", "tokenizers-before-fork")
def check(case: Case) -> Iterator[Finding]:
    script = case.script
    if script is None or "TOKENIZERS_PARALLELISM" in case.machine.environment:
        return
    tokenizer = next((name for name in script.uses if _is_tokenizer(name)), None)
    loads = any(name.split(".")[-1] == "DataLoader" for name in script.uses)
    if tokenizer is None or not loads:
        return
    yield Finding(
        code="CPU112",
        name="tokenizers-before-fork",
        severity="info",
        message=f"the script uses {tokenizer} and a DataLoader; each worker that forks after it warns of its threads",
        facts={"uses": tokenizer},
        remedy="export TOKENIZERS_PARALLELISM=false",
        file=script.path,
        line=script.lines.get(tokenizer),
    )


def _is_tokenizer(name: str) -> bool:
    return name.startswith("tokenizers.") or (name.startswith("transformers.") and "Tokenizer" in name)
