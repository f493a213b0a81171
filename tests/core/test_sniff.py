"""What a body is, told by its first bytes, since labels lie both ways."""

from __future__ import annotations

import pytest

from streamguard.core.sniff import Body, kind_of

SSE, JSON = "text/event-stream", "application/json"
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("label", [SSE, JSON, "", "text/plain"])
@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"data: x", "stream"),
        (b": ping", "stream"),
        (b"event: x", "stream"),
        (b"id: 1", "stream"),
        (b"retry: 1", "stream"),
        (BOM + b"data: x", "stream"),
        (b"\r\n\n data:", "stream"),
        (b'{"choices"', "object"),
        (b" \r\n\t{", "object"),
        (BOM + b"{", "object"),
        (b"[1]", "other"),
        (b"<html>", "other"),
    ],
)
def test_told_whatever_the_label(start: bytes, kind: Body, label: str) -> None:
    """Where the first characters tell, the label is not asked."""
    assert kind_of(start, label) == kind


@pytest.mark.parametrize("start", [b"nonsense", b"\xff\xfe", b"Data: x", b"true"])
def test_the_label_decides_where_nothing_else_does(start: bytes) -> None:
    """Unknown words under the right label are an event stream (other fields are allowed)."""
    assert kind_of(start, SSE) == "stream"
    assert kind_of(start, JSON) == "other"


@pytest.mark.parametrize("start", [b"", b"\n", b" \r\n\t", b"\xef", b"\xef\xbb", BOM, BOM + b"\n"])
@pytest.mark.parametrize("label", [SSE, JSON])
def test_not_told_yet(start: bytes, label: str) -> None:
    """Blanks and half a mark say nothing under any label."""
    assert kind_of(start, label) is None


@pytest.mark.parametrize("start", [b"d", b"data", b"e", b"id", b"retr"])
def test_half_a_field_name_is_waited_for(start: bytes) -> None:
    """Under a wrong label only."""
    assert kind_of(start, JSON) is None
    assert kind_of(start, SSE) == "stream"


@pytest.mark.parametrize("body", [b"\n" * 5000 + b"{", b" " * 1023 + b"{}", BOM + b"data:", b"x"])
@pytest.mark.parametrize("label", [SSE, JSON])
def test_the_same_bytes_are_the_same_body(body: bytes, label: str) -> None:
    """The first answer that any way to cut gives is the answer; endless blanks end somewhere."""
    whole = kind_of(body, label)
    answers = {kind_of(body[:at], label) for at in range(len(body) + 1)} - {None}
    assert answers == {whole}
