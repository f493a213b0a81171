"""Content codings: what any decoder reads."""

from __future__ import annotations

import gzip
import zlib

from streamguard.sim.codings import Coding, coder

EVENTS = [b"data: one\n\n", b"data: two\n\n"]


def encoded(coding: Coding, parts: list[bytes]) -> bytes:
    """The whole body."""
    built = coder(coding)
    return b"".join([*(built.encode(part) for part in parts), built.end()])


def test_zlib_reads_what_zlib_wrote() -> None:
    """gzip and deflate."""
    assert gzip.decompress(encoded("gzip", EVENTS)) == b"".join(EVENTS)
    assert zlib.decompress(encoded("deflate", EVENTS)) == b"".join(EVENTS)


def test_an_event_can_be_decoded_when_it_has_come() -> None:
    """A coder that kept an event back would make a stream that stands still."""
    built, decoder = coder("gzip"), zlib.decompressobj(wbits=31)
    assert [decoder.decompress(built.encode(event)) for event in EVENTS] == EVENTS


def test_br_and_zstd_are_what_their_decoders_read() -> None:
    """Bytes that brotli 1.2.1 and zstandard 0.25.0 have decoded to the two events."""
    assert encoded("br", EVENTS).hex() == (
        "a00010646174613a206f6e650a0a500008646174613a2074776f0a0a03"
    )
    assert encoded("zstd", EVENTS).hex() == (
        "28b52ffd0050580000646174613a206f6e650a0a580000646174613a2074776f0a0a010000"
    )


def test_what_exceeds_a_block_is_cut_into_blocks() -> None:
    """128 KiB for zstd, 64 KiB for br: one header each, no byte lost."""
    data = b"x" * 300_000
    for coding, head, block, header, end in (
        ("br", 0, 1 << 16, 3, 1),
        ("zstd", 6, 1 << 17, 3, 3),
    ):
        built = encoded("br" if coding == "br" else "zstd", [data])
        blocks = -(-len(data) // block)
        assert len(built) == head + len(data) + blocks * header + end
        assert built.count(b"x") == len(data)


def test_nothing_is_a_body_too() -> None:
    """An empty body is a valid frame."""
    assert encoded("br", []) == b"\x06"
    assert gzip.decompress(encoded("gzip", [])) == b""
