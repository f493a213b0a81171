"""What every test of the core shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.core.playbook import forgotten


@pytest.fixture(autouse=True)
def _every_playbook_is_asserted() -> Iterator[None]:
    """A playbook without its assert would pass whatever the guard does."""
    yield
    steps = forgotten()
    assert not steps, f"{steps} steps of playbooks that nobody asserted"
