"""A file of NCCL sets a variable that something else sets to another value.

## What it finds
A variable in ~/.nccl.conf, in the file that NCCL_CONF_FILE names or in /etc/nccl.conf whose value is not in effect,
since the environment, or the user's file before the system's, sets another.

## Why it matters
Files never override what is set already. Whoever edits the file believes that it counts; and the same job started
without that environment, by a scheduler or on another host, gets other settings.

## What to do
Keep the variable in one place only.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; src/misc/param.cc, setEnvFile
"""

from collections.abc import Iterator

from advisor.rules.nccl_variables import setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV109", "nccl-variable-hidden")
def check(case: Case) -> Iterator[Finding]:
    for name, file in case.machine.environment_hidden.items():
        found = setting(case.machine, name)
        if found is None:
            continue
        yield Finding(
            code="ENV109",
            name="nccl-variable-hidden",
            severity="info",
            message=f"{file} sets {name} to another value, which {found.words} hides",
            facts=found.facts | {"hidden_in": file},
            remedy=f"delete the line {name}= from {file}, or {found.undo}",
        )
