"""The simulated provider: recorded streams with their timing, generated ones, and every fault.

A raw socket and no HTTP library, and nothing of the guard: what it says it sent and when it saw a
close is evidence, so it shares no code with what is being watched.
"""
