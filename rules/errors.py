"""The one error that a user is meant to read."""


class AdvisorError(Exception):
    """What happened, and what to type next. `advisor.cli.main` is the only place that prints it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
