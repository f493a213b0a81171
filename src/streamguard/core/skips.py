"""Which entries a rule may leave out of its count: blanks and special tokens.

Told from the entry alone, so that skipping never depends on chunking. Not a tokenizer: a special
token is known by its spelling, and one that is spelled like text counts as text.
"""

from __future__ import annotations

import re

from streamguard.core.events import Entry

# One alternation of literals and bounded classes without nested repetition: linear on any input.
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,64}\|>"  # <|im_end|>, <|eot_id|>, <|endoftext|>
    r"|<\uff5c[^\uff5c<>\s]{1,64}\uff5c>"  # DeepSeek, with the full-width bar
    r"|</?s>|<(?:eos|bos|pad|unk|mask|sep|cls)>"  # Llama 2, Gemma, T5 and kin
    r"|<(?:start|end)_of_(?:turn|image)>"  # Gemma
    r"|<</?SYS>>"  # Llama 2
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|IMG)\]",  # Mistral
)
_LONGEST_SPECIAL = 68


def is_blank(entry: Entry) -> bool:
    """Whether the token is empty or white space, in its string and in its bytes.

    Half of a multi-byte character is often sent as an empty string with bytes: that is no blank.
    """
    token, octets = entry.token, entry.bytes
    if token is not None and token.strip():
        return False
    if octets is None:
        return token is not None
    try:
        return not bytes(octets).decode().strip()
    except ValueError:  # no UTF-8 by itself, or numbers that are no bytes
        return False


def is_special(entry: Entry) -> bool:
    """Whether the token is spelled like a control token of a known chat format."""
    token = entry.token
    if token is None:
        return False
    bare = token.strip()
    return len(bare) <= _LONGEST_SPECIAL and _SPECIAL.fullmatch(bare) is not None
