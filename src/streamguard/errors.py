"""Every error streamguard raises on purpose: one base, no depth.

Not here: verdicts, refusals and upstream faults. Those are values (`core.events`), because a
stream goes on after them. No message holds a key, a prompt, an answer, or a URL's credentials.
"""

from __future__ import annotations


class StreamguardError(Exception):
    """The base: catch this to catch all of them."""


class ConfigError(StreamguardError, ValueError):
    """Something an operator wrote cannot be used as it stands.

    It is a `ValueError` too, so that validating libraries carry it instead of crashing on it.

    Args:
        field: where: a setting, a flag, or a key path inside a file.
        problem: what is wrong with it, without the value where that may be secret.
        mend: what to write instead.
    """

    def __init__(self, field: str, problem: str, mend: str) -> None:
        super().__init__(f"{field}: {problem}; {mend}")
        self.field = field
        self.problem = problem
        self.mend = mend

    def at(self, field: str) -> ConfigError:
        """The same complaint about another name for the field (a key path, a flag)."""
        return ConfigError(field, self.problem, self.mend)


class InputError(StreamguardError):
    """A recording that cannot be read.

    Args:
        path: the file.
        problem: why it cannot be read; never its content.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem
