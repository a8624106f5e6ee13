"""A pytest plugin for llama-cpp-python's suite: some downloads are files of this machine.

``PYLLAMA_TEST_MODELS`` is JSON: paths by file name on the hub. Other downloads fail, as without a
network.
"""

from __future__ import annotations

import json
import os
from typing import Any

import huggingface_hub

MODELS: dict[str, str] = json.loads(os.environ["PYLLAMA_TEST_MODELS"])


def download(repo_id: str, filename: str, **options: Any) -> str:
    if filename not in MODELS:
        raise OSError(f"no download: {filename}")
    return MODELS[filename]


huggingface_hub.hf_hub_download = download  # before the suite imports it by name
