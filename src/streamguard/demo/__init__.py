"""The demo: recorded answers behind the real proxy, and an honest count of what it did to them.

Nothing here is part of the guard, and the guard does not know it: provider and proxy are the
installed commands, each in a process of its own, and what the demo says is what they report.
"""
