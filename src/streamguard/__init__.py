"""Stop an LLM stream early, upstream, when its first tokens say it is not worth paying for."""
