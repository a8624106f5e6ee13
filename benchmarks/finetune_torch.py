"""LoRA on a dequantized LLaMA in torch, as PEFT trains it: the reference of ``bench_finetune``.

    model = load_llama("x.gguf")                   # transformers' LlamaForCausalLM, float32
    pairs = add_lora(model, rank=16, gain=2.0)     # by PEFT if it is installed
    train(model, windows, ...)

Windows, order, batches, first values and the optimizer are those of ``pyllama.training``. Rows of
queries and keys have another order in Hugging Face's models than in GGUF files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from pyggml.gguf import GGUFFile
from pyggml.opt import Dataset
from pyggml.quants import dequantize
from pyllama import Model
from pyllama.training.graph import causal_mask

Array = npt.NDArray[Any]
MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load_llama(path: Path) -> Any:
    """The model of a GGUF file."""
    hp = Model.load(path, vocab_only=True).hparams
    state = {}
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            x = dequantize(file.tensor_bytes(name), info.type)
            x = x.reshape(info.ne[: info.n_dims][::-1]).astype(np.float32)
            theirs = _WHOLE.get(name)
            if theirs is None:
                _, i, part, end = name.split(".")
                theirs = f"model.layers.{i}.{(MODULES | _NORMS)[part]}.{end}"
                if part in ("attn_q", "attn_k"):
                    x = theirs_of(x, hp.head_dim)
            state[theirs] = torch.from_numpy(x.copy())
    tied = "lm_head.weight" not in state
    config = transformers.LlamaConfig(
        vocab_size=hp.n_vocab, hidden_size=hp.n_embd, intermediate_size=hp.n_ff,
        num_hidden_layers=hp.n_layer, num_attention_heads=hp.n_head, head_dim=hp.head_dim,
        num_key_value_heads=hp.n_head_kv, rms_norm_eps=hp.norm_eps, tie_word_embeddings=tied,
        max_position_embeddings=hp.n_ctx_train, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": hp.rope_freq_base},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.requires_grad_(False)


def theirs_of(x: Array, head_dim: int) -> Array:
    """Rows of queries or keys in the order of Hugging Face's models."""
    rest = x.shape[1:]
    pairs = x.reshape(-1, head_dim // 2, 2, *rest)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(-1, *rest))


class _Lora(torch.nn.Module):
    """A linear layer with a low-rank change, where PEFT is not installed."""

    def __init__(self, base: Any, rank: int, gain: float) -> None:
        super().__init__()
        self.base, self.gain = base, gain
        self.a = torch.nn.Parameter(torch.zeros(rank, base.in_features))
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.gain * (x @ self.a.T @ self.b.T)
        return out


def add_lora(model: Any, rank: int, alpha: float) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """The model with changes of all matrices of its layers; A and B by GGUF's names."""
    found = {}
    try:
        import peft
    except ImportError:
        for i, layer in enumerate(model.model.layers):
            for ours, theirs in MODULES.items():
                part, _, last = theirs.partition(".")
                change = _Lora(getattr(getattr(layer, part), last), rank, alpha / rank)
                setattr(getattr(layer, part), last, change)
                found[f"blk.{i}.{ours}.weight"] = change.a, change.b
        return model, found
    names = [theirs.partition(".")[2] for theirs in MODULES.values()]
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=names)
    model = peft.get_peft_model(model, config)
    for i, layer in enumerate(model.base_model.model.model.layers):
        for ours, theirs in MODULES.items():
            part, _, last = theirs.partition(".")
            change = getattr(getattr(layer, part), last)
            weights = change.lora_A["default"].weight, change.lora_B["default"].weight
            found[f"blk.{i}.{ours}.weight"] = weights
    return model, found


def set_lora(
    pairs: Mapping[str, tuple[Any, Any]], values: Mapping[str, tuple[Array, Array]], head_dim: int
) -> None:
    """Set A and B to those of an adapter in GGUF's order."""
    for name, (a, b) in pairs.items():
        x, y = values[name]
        if name.split(".")[2] in ("attn_q", "attn_k"):
            y = theirs_of(y, head_dim)
        a.data, b.data = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())


def losses(model: Any, hparams: Any, windows: Dataset, places: Array) -> tuple[Any, int]:
    """The sum of the losses of some windows, and the number of their labels."""
    assert windows.labels is not None
    masks = [causal_mask(windows.data[i, 1], 0, hparams) for i in places]
    mask = torch.from_numpy(np.maximum(np.stack(masks), np.finfo(np.float32).min))[:, None]
    data, labels = (torch.from_numpy(x[places].astype(np.int64)) for x in
                    (windows.data, windows.labels))  # fmt: skip
    logits = model(input_ids=data[:, 0], position_ids=data[:, 1], attention_mask=mask).logits
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )
    return total, int((labels >= 0).sum())


def mean_loss(model: Any, hparams: Any, windows: Dataset) -> float:
    """The mean over all rows with a label."""
    with torch.no_grad():
        found = [losses(model, hparams, windows, np.array([i])) for i in range(len(windows))]
    return sum(float(loss) for loss, _ in found) / sum(n for _, n in found)


def train(
    model: Any, hparams: Any, windows: Dataset, *, epochs: int, lr: float, batch: int
) -> tuple[list[float], float]:
    """Train; the losses of all steps, and the seconds."""
    assert windows.labels is not None
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr, weight_decay=0.0)
    found, start = [], time.perf_counter()
    for number in range(epochs):
        order = windows.order(number)
        for at in range(0, len(order) // batch * batch, batch):
            places = order[at : at + batch]
            n_labels = int((windows.labels[places] >= 0).sum())
            step = 0.0
            for i in places:
                loss, _ = losses(model, hparams, windows, np.array([i]))
                (loss / n_labels).backward()
                step += loss.item() / n_labels
            optimizer.step()
            optimizer.zero_grad()
            found.append(step)
    return found, time.perf_counter() - start
