"""Record transformers' hidden states for tiny checkpoints, in tests/data/embeddings/<name>.npz.

    python -m tests.pyllama.record_embeddings

Needs torch and transformers, which the tests do not. The checkpoints and tokens are those of
``arch/record.py``. A file has ``hidden`` float32[40, n_embd], what the output matrix multiplies, in
float32 with eager attention. ``llama_non_causal`` attends to all tokens. ``qwen3_ranking`` has
``head`` float32[2, n_embd], a classification head, and ``scores`` float32[2].
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers

from .arch.checkpoints import DATA, recorded, shapes_of, variants, write_checkpoint
from .arch.record import load_model

NAMES = ("gemma3", "gpt2", "lfm2", "llama", "opt", "qwen3")


def _save(name: str, **arrays: torch.Tensor) -> None:
    path = DATA / "embeddings" / f"{name}.npz"
    np.savez_compressed(path, **{k: x.detach().numpy() for k, x in arrays.items()})


@torch.no_grad()
def record(name: str, folder: Path) -> None:
    """Record the hidden states of a variant's tokens."""
    found, (_, config) = recorded(name), variants()[name]
    tokens = torch.tensor([found["tokens"].tolist()])
    write_checkpoint(folder / name, name)
    model = load_model(config, folder / name, shapes_of(found), float(found["scale"]))
    inner = model.base_model
    _save(name, hidden=inner(tokens, use_cache=False).last_hidden_state[0])
    if name == "llama":
        n = tokens.shape[1]
        visible = torch.zeros(1, 1, n, n)  # added to the scores of attention
        states = inner(tokens, attention_mask=visible, use_cache=False).last_hidden_state[0]
        _save("llama_non_causal", hidden=states)
    if name == "qwen3":
        path = folder / name / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "num_labels": 2}))
        torch.manual_seed(0)
        ranking = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder / name, attn_implementation="eager", dtype=torch.float32
        ).eval()
        ranking.score.weight.normal_()
        scores = ranking(tokens, use_cache=False).logits[0].softmax(-1)
        _save("qwen3_ranking", head=ranking.score.weight, scores=scores)


if __name__ == "__main__":
    (DATA / "embeddings").mkdir(exist_ok=True)
    for name in NAMES:
        with TemporaryDirectory() as directory:
            record(name, Path(directory))
