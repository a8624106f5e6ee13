"""The scripts of llama-cpp-python's README and of its folder ``examples``, with the demo model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.compat, pytest.mark.long, pytest.mark.model]

# What a block of the README needs that is not there: a download, an image, the C API.
NEEDS = re.compile(r"from_pretrained|ChatHandler|llama_backend_init")


def run(folder: Path, arguments: Sequence[str | Path]) -> str:
    """The output of a script; it must end well."""
    command = [sys.executable, "-P", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme(sources: Path, tmp_path: Path, demo_model: Path) -> None:
    """By changing the import: each block is a script, with another path of the model."""
    text = (sources / "README.md").read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "Llama(" in b]
    scripts = [block for block in blocks if not NEEDS.search(block)]
    assert (len(blocks), len(scripts)) == (9, 8)
    for number, script in enumerate(scripts):
        script = re.sub(r"^from llama_cpp[.\w]* import", "from pyllama import", script, flags=re.M)
        script = re.sub(r"^import llama_cpp$", "import pyllama as llama_cpp", script, flags=re.M)
        script = re.sub(r'model_path="[^"]*"', f"model_path={str(demo_model)!r}", script)
        if "import " not in script:
            script = "from pyllama import Llama\n" + script
        path = tmp_path / f"block_{number}.py"
        path.write_text(script, encoding="utf-8")
        run(tmp_path, [path])


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("inference", '"object": "text_completion"'),
        ("streaming", '"object": "text_completion"'),
        ("infill", "Fill-in-Middle completion"),
        ("embedding", "'object': 'embedding'"),
    ],
)
def test_the_examples(
    sources: Path, tmp_path: Path, demo_model: Path, name: str, output: str
) -> None:
    script = sources / "examples" / "high_level_api" / f"high_level_api_{name}.py"
    assert output in run(tmp_path, ["-m", "pyllama.compat", script, "-m", demo_model])
