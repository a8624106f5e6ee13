"""The model and its training: a LLaMA with ``relu(gate) * up``, most of whose gates are closed.

    trainer = ReluTrainer(SIZES, random_weights(SIZES, tied=True), n_steps=400)
    loss, density = trainer.run_step(windows)      # int32 [n_batch, n_ctx + 1]
    write_folder(hugging_face(trainer.arrays()), config(SIZES), folder)

ReLU alone leaves half of the gates of the first layers open. A penalty on L1 / L2 of each token's
gates (Hoyer's measure, blind to their scale, so that it cannot be met by small gates and large up
rows) closes most; its weight in each layer follows the layer's density, which falls to ``DENSITY``
in the first half of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import pyggml as ggml
from benchmarks.llama_graph import EPS, THETA, Array, LlamaGraph, Sizes
from benchmarks.relu.text import N_VOCAB
from pyggml import opt
from pyggml.context import Context
from pyggml.ops.op import OpBuilders
from pyggml.tensor import Tensor

SIZES = Sizes(n_vocab=N_VOCAB, n_embd=256, n_head=4, n_head_kv=4, n_ff=1024, n_layer=6)
RATE, WARM_UP, DECAY = 2e-3, 50, 0.1
DENSITY = 0.1  # of open gates, wanted
_MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "token_embd": "embed_tokens", "output_norm": "norm",
}  # fmt: skip


class ReluTrainer(opt.OptContext):
    """The graph with its loss, the penalties of the layers and the optimizer.

    Attributes:
        penalties: weights of the layers' penalties; checkpoints keep them.

    Args:
        weights: of the names of ``LlamaGraph``, without ``output``.
        n_steps: of the whole training, over which the learning rate and the densities fall.
    """

    def __init__(
        self, sizes: Sizes, weights: Mapping[str, Array], n_steps: int, n_threads: int = 2
    ) -> None:
        backend = ggml.init_backend("cpu", n_threads=n_threads)
        self._n_steps = n_steps
        self._gates: list[Tensor] = []  # after ReLU, of each layer
        self._densities: list[Tensor] = []

        def relu(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
            self._gates.append(ggml.relu(ctx, gate))  # [n_ff, n_tokens]
            return ggml.mul(ctx, self._gates[-1], up)

        def schedule(step: int) -> float:
            rest = (1 - step / n_steps) / max(1e-9, 1 - WARM_UP / n_steps)
            return min((step + 1) / WARM_UP, rest, 1.0)

        self._graph = LlamaGraph(backend, sizes, weights, relu)
        adamw = opt.AdamW(RATE, beta2=0.95, wd=DECAY, schedule=schedule, decay_1d=False)
        super().__init__(
            backend, self._graph.ctx, self._graph.inputs, self._graph.outputs,
            opt.OptParams(optimizer=adamw, max_norm=1.0),
        )  # fmt: skip
        self.settings["n_steps"] = n_steps
        self.state["penalties"] = self.penalties
        self.penalties.set(np.full(sizes.n_layer, 1e-3))

    def extra_nodes(self, ops: OpBuilders, static: Context) -> Sequence[Tensor]:
        """The sum of the weighted penalties, and each layer's number of open gates."""
        self.penalties = static.new_tensor_1d(ggml.GGMLType.F32, len(self._gates))
        self.penalties.set_name("penalties")
        total = None
        for i, gate in enumerate(self._gates):
            l2 = ops.sqrt(ops.scale(ops.sum_rows(ops.sqr(gate)), s=1.0, b=1e-6))
            hoyer = ops.sum(ops.div(ops.sum_rows(gate), l2))
            weight = ops.view(self.penalties, ne=(1, 1, 1, 1), nb=self.penalties.nb, offset=4 * i)
            term = ops.mul(ops.scale(hoyer, s=1 / gate.ne[1]), weight)
            total = term if total is None else ops.add(total, term)
            is_open = ops.sum(ops.unary(gate, kind="step"))
            self._densities.append(is_open.set_name(f"open-{i}").set_output())
        assert total is not None
        return total.set_name("penalty").set_loss(), *self._densities

    def run_step(self, windows: Array) -> tuple[float, Array]:
        """One step; its cross entropy (nats a token) and the density of each layer."""
        done = self.step / self._n_steps
        loss, density = self._run_windows(windows, train=True)
        wanted = max(DENSITY, 0.5 + (DENSITY - 0.5) * 2 * done)
        changed = self.penalties.numpy() * (density / wanted) ** 0.2
        self.penalties.set(np.clip(changed, 1e-5, 0.1))
        return loss, density

    def mean_loss(self, windows: Array) -> float:
        """The cross entropy of a whole number of batches, without training."""
        batches = windows.reshape(-1, self.n_micro_batch, windows.shape[1])
        return float(np.mean([self._run_windows(batch, train=False)[0] for batch in batches]))

    def arrays(self) -> dict[str, Array]:
        """Copies of the weights by name."""
        return self._graph.arrays()

    def _run_windows(self, windows: Array, train: bool) -> tuple[float, Array]:
        assert self.labels is not None
        self.inputs.set(windows[:, :-1])
        self.labels.set(windows[:, 1:].ravel())
        self.eval(train)
        n_open = np.array([node.numpy().item() for node in self._densities])
        return self.loss_value(), n_open / self._gates[0].nelements


def hugging_face(weights: Mapping[str, Array]) -> dict[str, Array]:
    """The weights by the names of Hugging Face's LLaMA."""
    found = {}
    for name, array in weights.items():
        *layer, part = name.split(".")
        at = f"layers.{layer[1]}." if layer else ""
        found[f"model.{at}{_MODULES[part]}.weight"] = array
    return found


def config(s: Sizes) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "relu",
        "hidden_size": s.n_embd,
        "intermediate_size": s.n_ff,
        "num_hidden_layers": s.n_layer,
        "num_attention_heads": s.n_head,
        "num_key_value_heads": s.n_head_kv,
        "max_position_embeddings": 2 * s.n_ctx,
        "vocab_size": s.n_vocab,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
