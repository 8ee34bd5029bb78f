"""The rules whose findings --fix may correct, by name: known without LibCST."""

FIXABLE = frozenset(
    {
        "gradients-kept-twice",
        "loaded-onto-the-first-gpu",
        "logged-by-all-ranks",
        "saved-by-all-ranks",
        "set-epoch-missing",
        "tracker-on-all-ranks",
    }
)
