"""Fixtures and profiles that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file; a test that uses it also carries the marker ``model``."""
    from pyllama.demo import demo_model_path
    from pyllama.errors import ModelError

    try:
        return demo_model_path()
    except ModelError as error:
        pytest.skip(f"no demo model: {error}")
