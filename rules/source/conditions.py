"""Which ranks a condition lets through, told by what it compares, or by a name."""

import ast

from advisor.rules.source import branches
from advisor.rules.source.known_names import IN_GROUP, IS_DISTRIBUTED, IS_FIRST, IS_LOCAL_FIRST, VARIABLES
from advisor.rules.source.roles import role_of_name
from advisor.rules.source.value import LOCAL_RANK, NOTHING, RANK, Value

MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
ALONE = {
    *((ast.Eq, -1), (ast.Is, None), (ast.Eq, None), (ast.Lt, 0)),
}
TOGETHER = {
    *((ast.NotEq, -1), (ast.IsNot, None), (ast.NotEq, None), (ast.GtE, 0), (ast.Gt, -1)),
}
FIRST = {(ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1), (ast.Is, 0)}
OTHERS = {(ast.NotEq, 0), (ast.Gt, 0), (ast.GtE, 1), (ast.IsNot, 0)}
ONE_RANK = {(ast.Eq, 1), (ast.LtE, 1), (ast.Lt, 2)}
MANY_RANKS = {(ast.NotEq, 1), (ast.Gt, 1), (ast.GtE, 2)}


def tell(value: Value, name: str) -> None:
    """Let a name say what a value is of which nothing else is known."""
    if value.role or value.known or value.code is not None or value.items is not None or value.split:
        return
    role = role_of_name(name)
    if value.taint and not (role in ("rank", "local_rank") and value.taint <= {RANK, LOCAL_RANK}):
        return
    if role:
        value.role = role
        value.taint = {"rank": frozenset({RANK}), "local_rank": frozenset({LOCAL_RANK})}.get(role, NOTHING)
    elif IS_FIRST.match(name):
        value.split, value.taint = "first", frozenset({RANK})
    elif IS_LOCAL_FIRST.match(name):
        value.split, value.taint = "first", frozenset({LOCAL_RANK})
    elif IN_GROUP.match(name):
        value.taint = frozenset({RANK})
    elif IS_DISTRIBUTED.match(name):
        value.split = "distributed"


def as_condition(value: Value) -> Value:
    """Read a rank as the condition that it is: `if rank:`, `rank and ...`."""
    if value.role in ("rank", "local_rank") and not value.split:
        return value.changed(split="others")
    return value


def split_by(value: Value, left: Value, right: Value, operator: type[ast.cmpop]) -> None:
    """Say which ranks a comparison is true on."""
    const = right.const
    pair = (operator, const) if isinstance(const, int | None) and right.known else None
    if left.role in ("rank", "local_rank"):
        if operator in (ast.In, ast.NotIn) and right.items is not None:
            known = {item.const for item in right.items}
            inside = "first" if known <= {0, -1} else "some"
            value.split = inside if operator is ast.In else branches.negated(inside)
        elif pair in ALONE:
            value.split, value.taint = "alone", NOTHING
        elif pair in TOGETHER:
            value.split, value.taint = "distributed", NOTHING
        elif pair in FIRST:
            value.split = "first"
        elif pair in OTHERS:
            value.split = "others"
        else:
            value.split = "some" if right.known or right.role == "world_size" else "unsure"
    elif left.role == "world_size" or left.name == "torch.cuda.device_count()":
        value.split = "distributed" if pair in MANY_RANKS else "alone" if pair in ONE_RANK else ""
        value.taint = NOTHING
    elif right.name == "os.environ" and left.const in VARIABLES and operator in (ast.In, ast.NotIn):
        value.split = "distributed" if operator is ast.In else "alone"
    elif left.split in ("first", "others", "distributed", "alone") and const in (True, False, None, 0, 1):
        same = (operator in (ast.Eq, ast.Is)) == (const in (True, 1) and const is not None)
        value.split = left.split if same else branches.negated(left.split)
    elif value.taint & {RANK, LOCAL_RANK}:
        value.split = "unsure"
    elif operator in (ast.IsNot, ast.NotEq) and const is None and left.role == "sampler":
        value.split = "distributed"
