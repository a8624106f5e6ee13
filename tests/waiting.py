"""Waits of tests: for a condition, with a bound that only a fault reaches.

until(lambda: server.n_running == 0)
assert begun.wait(WAIT_S)
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0  # with an empty code cache, kernels compile in the meantime


def until(is_so: Callable[[], object]) -> None:
    """Wait until a condition holds, which another thread or process brings about."""
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end, f"not so after {WAIT_S:.0f} s"
        time.sleep(0.002)
