"""The same answer to a request that asks for no stream: one JSON object, made from the events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamguard.sim.recordings import payload_of
from streamguard.sim.stream import Event


def assemble(events: Iterable[Event]) -> dict[str, Any]:
    """Join the chunks of a stream into the answer they are parts of."""
    head: dict[str, Any] = {}
    usage: Any = None
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = payload_of(event.data.decode())
        if not isinstance(chunk, dict):
            continue
        head = head or {key: chunk.get(key) for key in ("id", "object", "created", "model")}
        usage = chunk.get("usage") or usage
        for part in chunk.get("choices", []):
            whole = choices.setdefault(
                part["index"], {"text": "", "logprobs": None, "finish": None}
            )
            delta = part.get("delta")
            whole["text"] += (part.get("text") if delta is None else delta.get("content")) or ""
            whole["logprobs"] = _joined(whole["logprobs"], part.get("logprobs"))
            whole["finish"] = part.get("finish_reason") or whole["finish"]
    chat = head.get("object") == "chat.completion.chunk"
    if chat:
        head["object"] = "chat.completion"
    return {
        **head,
        "choices": [
            {
                "index": index,
                **(
                    {"message": {"role": "assistant", "content": whole["text"]}}
                    if chat
                    else {"text": whole["text"]}
                ),
                "logprobs": whole["logprobs"],
                "finish_reason": whole["finish"],
            }
            for index, whole in sorted(choices.items())
        ],
        "usage": usage,
    }


def _joined(so_far: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """Both shapes are lists by name; the lists are joined."""
    if more is None:
        return so_far
    joined = dict(so_far or {})
    for name, values in more.items():
        joined[name] = [*joined.get(name, []), *(values or [])]
    return joined
