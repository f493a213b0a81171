"""Offline work on recorded streams."""
