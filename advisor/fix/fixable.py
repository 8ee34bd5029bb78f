"""The rules whose findings --fix may correct, by name: known without LibCST."""

FIXABLE = frozenset(
    {
        "gradients-kept-twice",
        "load-without-map-location",
        "logging-on-all-ranks",
        "progress-bar-on-all-ranks",
        "save-on-all-ranks",
        "set-epoch-missing",
        "tracker-on-all-ranks",
    }
)
