"""Variants of EmbeddingGemma: with and without dense layers, and other windows."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "architectures": ["Gemma3TextModel"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "use_bidirectional_attention": True,
}
NAME = "gemma-embedding"
VARIANTS = {
    "gemma-embedding": _BASE,
    "gemma-embedding_one_dense": {**_BASE, "num_hidden_layers": 3, "sliding_window": 15},
    "gemma-embedding_plain": {
        **_BASE, "num_hidden_layers": 3, "query_pre_attn_scalar": 20, "sliding_window": 400,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip


def modules(*dense: tuple[int, int, bool]) -> dict[str, Any]:
    """The files of a folder with dense layers of these sizes (and biases) after mean pooling."""
    names = ["", "1_Pooling", *(f"{i}_Dense" for i in range(2, 2 + len(dense)))]
    kinds = ["Transformer", "Pooling", *("Dense" for _ in dense)]
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "path": name, "type": f"sentence_transformers.models.{kind}"}
            for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    for name, (n_in, n_out, bias) in zip(names[2:], dense, strict=True):
        files[f"{name}/config.json"] = {
            "in_features": n_in, "out_features": n_out, "bias": bias,
            "activation_function": "torch.nn.modules.linear.Identity",
        }  # fmt: skip
    return files


FILES = {
    "gemma-embedding": modules((64, 192, False), (192, 64, False)),
    "gemma-embedding_one_dense": modules((64, 48, True)),
}
DIFFERENT = {  # llama.cpp's converter leaves out biases
    "gemma-embedding_one_dense": ("dense_2.bias",),
}
LLAMA_CPP = ("gemma-embedding",)
