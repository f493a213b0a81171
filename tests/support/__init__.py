"""The test bench: a scriptable provider, a raw client, and the installed command as a subject."""
