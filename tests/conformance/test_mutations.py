"""Damaged recordings: whatever a stream has become, the core and the oracle read the same in it."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance import corpus
from tests.conformance.bench import check

BODIES = [
    body
    for body in (corpus.response(name).body for name in corpus.NAMES if corpus.answer(name).events)
    if len(body) < 4000
]
FRAGMENTS = [
    b"\n", b"\r", b"\r\n", b"\n\n", b'"', b"{", b"}", b"[", b"]", b"null", b"NaN", b"-1e999",
    b"true", b"0.0", b": note\n", b"data:", b"event: error\n", b"id: 3\n", b"retry: x\n",
    b"data: [DONE]\n\n", b"\xff", b"\xef\xbb\xbf", b"\\ud83d\\ude00", b'"logprob":', b"\x00",
    b'"error":{"a":1},', b'"index":"x",', b'"choices":', "\u2028".encode(), b"\xe2\x80",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A recorded body with one to four places cut out, written over, or written into."""
    body = bytearray(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        gone = draw(st.integers(0, 30))
        body[at : at + gone] = draw(st.sampled_from([b"", *FRAGMENTS]))
    return bytes(body)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(body=damaged(), asked=st.sampled_from([None, 0, 1, 5]), clean=st.booleans())
def test_damage_is_read_alike(body: bytes, asked: int | None, clean: bool) -> None:
    """Entries, scores, signals, finish, events and outcome agree; an undamaged frame is kept."""
    check(body, asked=asked, clean=clean)
