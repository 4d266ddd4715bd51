"""What ratemesh raises and warns with, so that callers can tell our words from a bug's."""


class RatemeshError(Exception):
    """Something ended the work; the message says what and how to go on."""


class InputError(RatemeshError, ValueError):
    """The caller's input cannot be used; says `<argument> must <condition>; got <value>. <remedy>` or the like."""


class NonFiniteFeaturesError(InputError):
    """Features are NaN or infinite; `label` is the class of the first such row."""

    def __init__(self, message: str, label: int) -> None:
        super().__init__(message)
        self.label = label


class NonFiniteError(RatemeshError, ArithmeticError):
    """Training left the numbers: names node, class and round."""


class StopTraining(Exception):  # noqa: N818 - it asks for something, and nothing is wrong
    """Raised by a callback of a run: this round is the last one. The run is judged and finished; `reason` is kept."""

    def __init__(self, reason: str = "a callback asked for it") -> None:
        super().__init__(reason)
        self.reason = reason


class RatemeshWarning(UserWarning):
    """The work goes on, but a condition of the theory or of good practice does not hold."""
