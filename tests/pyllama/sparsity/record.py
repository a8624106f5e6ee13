"""Record what torch computes for tiny ReLU models with predictors, in tests/data/sparse.

    python -m tests.pyllama.sparsity.record [NAME...]

Needs torch and transformers, which the tests do not. A file has ``tokens`` int32[40], ``logits``
float32[40, 512] of the model whose neurons below the threshold are zero, ``threshold`` and
``active`` (the mean fraction of neurons that are computed), in float32 with eager attention. Of 50
thresholds, the one with the largest distance to any score is used, because a neuron that is active
in only one of the programs would change logits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ..arch.checkpoints import DATA, shapes_of, variants
from ..arch.checkpoints import recorded as dense_recording
from ..arch.record import compute_logits, load_model, save_config
from .files import N_LAYER, VARIANTS, predictors

# by model type: layers; the module with the predictors' input ("" is the layer itself); the matrix
# that active neurons are multiplied with
_PLACES = {
    "llama": ("model.layers", "post_attention_layernorm", "mlp.down_proj"),
    "bamboo": ("model.layers", "post_attention_layernorm", "mlp.down_proj"),
    "opt": ("model.decoder.layers", "final_layer_norm", "fc2"),
    "falcon": ("transformer.h", "", "mlp.dense_4h_to_h"),
}


class Predictors:
    """Hooks that set neurons to zero where a layer's predictors score below the threshold."""

    def __init__(self, model: Any, kind: str) -> None:
        layers, read, down = _PLACES[kind]
        self.threshold, self.active, self.gap = 0.0, [0.0], float("inf")
        found = model.get_submodule(layers)
        matrix = found[0].get_submodule(down)
        made = predictors(matrix.out_features, matrix.in_features)
        for i in range(N_LAYER):
            fc1, fc2 = (torch.from_numpy(made[f"blk.{i}.fc{n}.weight"]) for n in (1, 2))
            scores: list[Any] = []

            def score(
                module: Any, given: Any, kw: Any, s: Any = scores, a: Any = fc1, b: Any = fc2
            ) -> None:
                x = given[0] if given else kw["hidden_states"]
                s[:] = [torch.relu(x.reshape(-1, x.shape[-1]) @ a.T) @ b.T]

            def zero(module: Any, given: Any, s: Any = scores) -> Any:
                on = s[0] >= self.threshold
                self.active.append(float(on.float().mean()))
                self.gap = min(self.gap, float((s[0] - self.threshold).abs().min()))
                return (given[0] * on.reshape(given[0].shape),)

            found[i].get_submodule(read).register_forward_pre_hook(score, with_kwargs=True)
            found[i].get_submodule(down).register_forward_pre_hook(zero)

    def run(self, model: Any, tokens: list[int], threshold: float) -> np.ndarray:
        self.threshold, self.active, self.gap = threshold, [], float("inf")
        return compute_logits(model, tokens)


@torch.no_grad()
def record(name: str, config: dict[str, Any], folder: Path) -> None:
    dense = dense_recording(name)
    tokens = dense["tokens"].tolist()
    shapes = save_config(config, folder)
    assert shapes == shapes_of(dense)
    model = load_model(config, folder, shapes, float(dense["scale"]))
    hooks = Predictors(model, config["model_type"])
    assert np.allclose(hooks.run(model, tokens, -np.inf), dense["logits"], atol=1e-4)
    gaps = {}
    for threshold in np.linspace(0.05, 0.3, 50, dtype=np.float32):
        hooks.run(model, tokens, float(threshold))
        gaps[float(threshold)] = hooks.gap
    best = max(gaps, key=lambda t: gaps[t])
    logits = hooks.run(model, tokens, best)
    active = float(np.mean(hooks.active))
    np.savez_compressed(
        DATA / "sparse" / f"{name}.npz",
        tokens=np.array(tokens, np.int32),
        logits=logits,
        threshold=np.float32(best),
        active=np.float64(active),
    )
    difference = np.abs(logits - dense["logits"]).max()
    print(
        f"{name}: threshold {best:.3f}, {active:.0%} active, gap {gaps[best]:.1e}, {difference:.2f}"
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or VARIANTS:
        with TemporaryDirectory() as directory:
            record(name, variants()[name][1], Path(directory))
