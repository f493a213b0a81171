"""The sans-IO core: synchronous, without clock, logging, randomness, environment or files."""
