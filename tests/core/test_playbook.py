"""The playbooks themselves: a tool that can't fail would prove nothing."""

from __future__ import annotations

import pytest
from tests.core.playbook import data, end, eof, forgotten, head, play, refuse, send, start
from tests.reference.build import D, said

from streamguard.core.guard import Guard
from streamguard.core.request import Prepared
from streamguard.core.specs import Policy


@pytest.fixture(name="guard")
def _guard() -> Guard:
    prepared = Prepared(guarded=True, dialect="chat", body=b"{}", original=b"{}", asked=1)
    return Guard(Policy(), prepared, id="i", now=0.0)


def test_a_match_is_true(guard: Guard) -> None:
    """What comes as expected passes, and the portions of bytes sent in a row don't matter."""
    body = said(("a", -1.0))

    assert play(guard) >> start() >> head() >> data(body) << send(body[:9]) << send(body[9:])
    assert play(guard) >> eof() << end()


def test_a_mismatch_shows_both(guard: Guard) -> None:
    """The complaint names the step and shows what was expected and what came."""
    book = play(guard) >> start() >> head() >> data(said(), D) << send(said()) << end()

    with pytest.raises(AssertionError) as caught:
        bool(book)
    text = str(caught.value)
    assert text.startswith("step 3: data(b'data: ")
    assert "- End(clean=True)" in text
    assert "+ Send(b'data: [DONE]\\n\\n')" in text


def test_an_unexpected_action_is_a_mismatch(guard: Guard) -> None:
    """A step without any action behind it must bring none."""
    book = play(guard) >> start() >> head() >> data(said())

    with pytest.raises(AssertionError, match=r"\+ Send"):
        bool(book)


def test_one_that_nobody_asserts_is_found(guard: Guard) -> None:
    """Forgetting the assert fails the test instead of passing it."""
    book = play(guard) >> start() >> head()
    assert forgotten() == 2

    assert book
    assert play(guard) >> eof() << refuse(502, "upstream_truncated", retry=True)
    assert forgotten() == 0
