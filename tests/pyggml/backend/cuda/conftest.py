"""Fixtures of the CUDA backend's tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def shared_images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give all processes of this run one folder for compiled kernels."""
    pytest.importorskip("numba_cuda")
    pytest.importorskip("nvidia.cu13")
    from . import images

    base = tmp_path_factory.getbasetemp()
    images.folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "images"
    images.folder.mkdir(exist_ok=True)
