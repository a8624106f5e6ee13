"""Fixtures and profiles that all tests share."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, so that a failure comes from the change;
# `--hypothesis-profile explore` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")

# Numba makes many objects, and few in cycles: with Python's thresholds a tenth of the time that
# kernels compile goes to collections.
gc.set_threshold(100_000, 20, 100)


# A shell ignores Ctrl-C for commands in the background, and so would Python and what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collections."""
    gc.freeze()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file; a test that uses it also carries the marker ``model``."""
    from pyllama.errors import ModelError
    from pyllama.hub.demo import demo_model_path

    try:
        return demo_model_path()
    except ModelError as error:
        pytest.skip(f"no demo model: {error}")
