"""Call the executor as the command line does: drive_apply.py PLAN.JSON RUN_DIR SCRIPT [arguments of the script]."""

import os
import sys
from pathlib import Path

import msgspec

from advisor.executor.apply import apply
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan


def main() -> int:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    try:
        patience = float(os.environ.get("HANG_TIMEOUT", "60"))
        run_dir = Path(sys.argv[2])
        return apply(plan, None, sys.argv[3], sys.argv[4:], run_dir=run_dir, hang_timeout=patience).exit_code
    except AdvisorError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return 2


sys.exit(main())
