"""After an interrupted write the old or new file is complete, and no temporary file is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .faulty_files import WRITERS
from .tiers import some

ROOT = Path(__file__).resolve().parent.parent
NAMES = [writer.name for writer in WRITERS]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("names", some([NAMES[i::4] for i in range(4)], 1), ids="+".join)
def test_a_kill_or_a_full_disk_at_every_step(names: list[str]) -> None:
    command = [sys.executable, "-P", "-m", "tests.faulty_files", *names]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=250)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
