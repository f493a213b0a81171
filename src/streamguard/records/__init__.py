"""StreamReport on its way out, and recordings on their way in."""
