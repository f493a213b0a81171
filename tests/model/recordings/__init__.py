"""The demo's recordings: questions with a known answer, put to a real model and written down.

Part of the repository, not of the wheel: what ships is the file this makes,
`src/streamguard/sim/recordings/smollm2.jsonl`.
"""
