"""`static_graph` of a plan: switched on after a look at the first steps, and never silently wrong."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_the_graph_is_made_static_where_it_is_and_losses_stay_the_same(scripts: Any, ranks_of: Any) -> None:
    """The script trains each model a second time with `static_graph=False`, and prints whether all was the same."""
    plan = scripts.plan(2, static_graph=True, gradient_as_bucket_view=False)
    result = scripts.forked(ranks_of, "kinds/static.py", plan=plan)
    assert result.exit_code == 0, result.err
    remedy = 'write "static_graph": false in the plan'
    more = f"the graph has changed: other.bias got a gradient, and none in the first 3 steps: {remedy}"
    less = f"the graph has changed: in this step not all parameters got a gradient that did in the first 3: {remedy}"
    assert result.out.splitlines() == [
        "unused static same",
        "keeps_gradients static same",
        "ranks_at_odds static same",
        "compresses static same",
        "copied dynamic same",
        "by_turns dynamic same",
        "differs_at_the_switch dynamic same",
        "accumulates dynamic same",
        f"less_later {less}",
        f"more_later {more}",
        f"more_without_sync {more}",
    ]
    stays = "advisor: static_graph stays off: "
    said = [line.removeprefix(stays) for line in result.err.splitlines() if line.startswith(stays)]
    differ = "the parameters that get a gradient differ from step to step"
    assert said == [differ, differ, "the script accumulates with no_sync()"]
    changes = [(one.argument, one.script, one.plan, one.used) for one in result.changes]
    assert changes == [
        ("static_graph", None, True, "plan"),
        ("static_graph", False, True, "script"),
        ("static_graph", None, True, "script"),
    ]
