"""Logs and metrics: observers, never in the way."""
