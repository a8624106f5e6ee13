"""LoRA against torch: the same windows, order, first values and steps give the same adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllama import Model
from pyllama.training import Example, Finetuner, LoraParams, TuneParams, chat_windows

from ..models import Spec, random_weights, write_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # by PEFT
]

SPEC = Spec(n_layer=2, n_ff=64)
EPOCHS, RATE, BATCH, N_CTX, RANK = 3, 1e-3, 2, 32, 4


def test_an_adapter_is_that_of_torch(tmp_path: Path) -> None:
    """Windows of several texts, of which parts are learned; PEFT's layers if it is installed."""
    from benchmarks import finetune_torch as theirs

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))
    texts = [
        [Example(rng.integers(3, 259, n).astype(np.int32), np.arange(n) >= n // 2)]
        for n in rng.integers(8, 30, 24)
    ]
    train, held_out = chat_windows(texts, N_CTX, 0.2)
    assert held_out is not None
    model = Model.load(path, repack=False)
    lora = LoraParams(RANK)
    params = TuneParams(lora=lora, epochs=EPOCHS, lr=RATE, n_batch=BATCH * N_CTX, n_threads=1)
    tuner = Finetuner(model, train, params)
    adapter = tuner.trainer.params
    other, pairs = theirs.add_lora(theirs.load_llama(path), RANK, lora.factor)
    first = {name: w.numpy(squeeze=False)[0, 0].copy() for name, w in adapter.items()}
    hp = model.hparams
    theirs.set_lora(
        pairs, {n: (first[f"{n}.lora_a"], first[f"{n}.lora_b"]) for n in pairs}, hp.head_dim
    )
    assert tuner.evaluate(held_out).loss == pytest.approx(
        theirs.mean_loss(other, hp, held_out), rel=1e-5
    )
    results = tuner.fit(held_out, callback=None)
    theirs.train(other, hp, train, epochs=EPOCHS, lr=RATE, batch=BATCH)
    assert results[-1][1] is not None
    after = theirs.mean_loss(other, hp, held_out)
    assert results[-1][1].loss == pytest.approx(after, rel=1e-4)
    for name, (a, b) in pairs.items():
        got = adapter[f"{name}.lora_b"].numpy()
        if name.split(".")[2] in ("attn_q", "attn_k"):
            got = theirs.theirs_of(got, hp.head_dim)
        for x, y in ((adapter[f"{name}.lora_a"].numpy(), a), (got, b)):
            np.testing.assert_allclose(x, y.detach().numpy(), atol=1e-4)
