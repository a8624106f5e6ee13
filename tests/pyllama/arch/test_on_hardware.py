"""On an NVIDIA GPU: every graph of decoders and every encoder gives the CPU's logits.

In a checkout on a machine with a GPU, a few minutes with empty caches:

pytest -m gpu -n 8 tests/pyllama/arch/test_on_hardware.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.cuda import discovery
from pyggml.dtype import GGMLType
from pyllama import Context, Model
from pyllama.embeddings import embed_many
from pyllama.engine import Engine

from ..encoders.checkpoints import parts
from ..encoders.checkpoints import recorded as recorded_encoder
from ..encoders.checkpoints import write_checkpoint as write_encoder
from ..encoders.variants import ENCODERS
from .checkpoints import conversions, own_graphs, recorded, write_checkpoint
from .test_arch import logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not discovery.devices(), reason=discovery.why_none() or "a GPU"),
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),  # numba-cuda's
]
EXACT: Any = {"type_k": GGMLType.F32, "type_v": GGMLType.F32}


def nmse(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(((got - wanted) ** 2).sum() / (wanted**2).sum())


@pytest.mark.parametrize("name", own_graphs())
def test_a_decoder_gives_the_cpus_logits(tmp_path: Path, name: str) -> None:
    """Float weights and caches, all at once and token by token, then 8-bit ones."""
    converted = conversions(tmp_path, write_checkpoint)
    tokens = recorded(name)["tokens"].tolist()
    one_by_one = tuple(range(1, len(tokens)))
    here, there = (Model.load(converted(name), devices=d) for d in (None, ["cuda0"]))
    wanted = logits(here, tokens, **EXACT)
    assert nmse(logits(there, tokens, **EXACT), wanted) < 1e-6
    assert nmse(logits(there, tokens, one_by_one, **EXACT), wanted) < 1e-6
    rounded = [
        logits(Model.load(converted(name, "q8_0"), devices=d), tokens) for d in (None, ["cuda0"])
    ]
    assert nmse(rounded[1], rounded[0]) < 0.02


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_an_encoder_gives_the_cpus_rows(tmp_path: Path, name: str) -> None:
    path = conversions(tmp_path, write_encoder)(name)
    texts = [x.tolist() for x in parts(recorded_encoder(name), "tokens")]
    kind = "rank" if "id2label" in ENCODERS[name] else "none"
    here, there = (
        np.concatenate(embed_many(Engine(Context(Model.load(path, devices=d))), texts, kind))
        for d in (None, ["cuda0"])
    )
    assert nmse(there, here) < 1e-6
