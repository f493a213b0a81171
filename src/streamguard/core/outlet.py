"""What goes out of a Guard: bytes gathered into few `Send`s, other actions between, in order."""

from __future__ import annotations

from collections.abc import Iterable

from streamguard.core.events import Action, Send


class Outlet:
    """Collects what one event leads to, until the shell takes it."""

    __slots__ = ("_actions", "_text", "sent_bytes", "waiting_bytes")

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._text: list[bytes] = []
        self.sent_bytes = 0
        self.waiting_bytes = 0  # gathered, and not gone out

    def write(self, *texts: bytes) -> None:
        """Gather bytes for the client."""
        self._text += texts
        for text in texts:
            self.waiting_bytes += len(text)

    def act(self, action: Action) -> None:
        """Add an action; it stays behind the bytes written before."""
        self.flush()
        self._actions.append(action)

    def act_at_once(self, actions: Iterable[Action]) -> None:
        """Add actions and forget bytes that were gathered: nobody will get them."""
        self._text.clear()
        self.waiting_bytes = 0
        self._actions += actions

    def flush(self) -> None:
        """Make one `Send` of the bytes gathered."""
        data = self._text[0] if len(self._text) == 1 else b"".join(self._text)
        self._text.clear()
        self.waiting_bytes = 0
        if data:
            self.sent_bytes += len(data)
            self._actions.append(Send(data))

    def take(self, *, hold: bool = False) -> list[Action]:
        """Everything collected, in order. With `hold` the gathered bytes stay for later."""
        if not hold and self._text:
            self.flush()
        taken, self._actions = self._actions, []
        return taken
