"""What errors say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyopt.errors import UserError


def message(call: Callable[[], object]) -> str:
    """What the UserError says that a call raises."""
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)
