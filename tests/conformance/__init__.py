"""The core against an independent reading of the same bytes."""
