"""The aiohttp shell: one listener in front, one upstream behind."""
