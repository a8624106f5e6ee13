"""Tiny checkpoints with a layer of multi-token prediction, and the same layer as a whole model.

    config, made = with_mtp("qwen35")              # for ``write_files``
    config, made = alone(config, made, inputs)     # one layer whose embedding has the inputs

transformers leaves such layers out. Their weights are those of a decoder's layer of the variant,
with values of their own.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .checkpoints import recorded, shapes_of, variants, weights

Made = dict[str, np.ndarray]
QWEN = {  # names in checkpoints that have the layer under ``mtp.``
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head.norm": "mtp.norm",
}
# model types that call the norm ``final_layernorm``
FINAL_NORM = ("mimo_v2_flash", "hy_v3", "bailing_moe_v3")


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json about text."""
    found: dict[str, Any] = config.get("text_config", config)
    return found


def name_of(config: dict[str, Any], part: str) -> str:
    """The name in the checkpoint of a tensor that only such a layer has, without ``.weight``."""
    kind = config["model_type"]
    if kind.startswith("qwen"):
        return QWEN[part]
    is_final = part == "shared_head.norm" and kind in FINAL_NORM
    return _prefix(config) + ("final_layernorm" if is_final else part)


def _prefix(config: dict[str, Any]) -> str:
    """The beginning of the names of the layer's other tensors."""
    kind = config["model_type"]
    if kind.startswith("mimo"):
        return "model.mtp.layers.0."
    n_layer = text_config(config)["num_hidden_layers"]
    return "mtp.layers.0." if kind.startswith("qwen") else f"model.layers.{n_layer}."


def with_mtp(name: str) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of a variant, with a layer of multi-token prediction."""
    config, record = copy.deepcopy(variants()[name][1]), recorded(name)
    shapes, text = shapes_of(record), text_config(config)
    attention = [x for x in shapes if "self_attn" in x or "attention.kv_a_proj" in x]
    last = max(int(x.split("layers.")[1].split(".")[0]) for x in attention)
    prefix, n_embd = f"model.layers.{last}.", text["hidden_size"]
    own = {x.removeprefix(prefix): n for x, n in shapes.items() if x.startswith(prefix)}
    if name == "mimo2":  # the attention of the last layer, the dense part of the first one
        first = "model.layers.0."
        own = {x: n for x, n in own.items() if not x.startswith(("mlp.", "post_attention_layer"))}
        own |= {x.removeprefix(first): n for x, n in shapes.items() if x.startswith(f"{first}mlp.")}
        own["pre_mlp_layernorm.weight"] = (n_embd,)
    elif not config["model_type"].startswith("qwen"):
        text["num_nextn_predict_layers"] = 1
    more = {f"{_prefix(config)}{x}": n for x, n in own.items()}
    more[f"{name_of(config, 'eh_proj')}.weight"] = (n_embd, 2 * n_embd)
    for part in ("enorm", "hnorm", "shared_head.norm"):
        more[f"{name_of(config, part)}.weight"] = (n_embd,)
    return config, weights(config["model_type"], {**shapes, **more}, float(record["scale"]))


def embedding(made: Made) -> str:
    """The name of the tokens' embeddings."""
    return next(x for x in made if x.endswith((".embed_tokens.weight", ".word_embeddings.weight")))


def inputs_of(config: dict[str, Any], made: Made, tokens: list[int], hidden: np.ndarray) -> Any:
    """What the layer computes first, float64[n, n_embd]: of tokens, and hidden states before each.

    Source: DeepSeek-AI 2024, "DeepSeek-V3", equation 21.
    """
    added = float(config["model_type"].startswith("qwen"))
    eps = text_config(config).get("rms_norm_eps", 1e-6)

    def norm(x: np.ndarray, part: str) -> np.ndarray:
        weight = made[f"{name_of(config, part)}.weight"] + added
        scaled: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
        return scaled

    embedded = made[embedding(made)][tokens].astype(np.float64)
    both = np.concatenate([norm(embedded, "enorm"), norm(hidden.astype(float), "hnorm")], 1)
    x: Any = both @ made[f"{name_of(config, 'eh_proj')}.weight"].T
    return x


def alone(config: dict[str, Any], made: Made, inputs: Any) -> tuple[dict[str, Any], Made]:
    """The layer as a model of its own, whose token ``i`` has the embedding ``inputs[i]``."""
    parts = (*QWEN, "final_layernorm")
    one = {
        f"model.layers.0.{x.removeprefix(_prefix(config))}": w
        for x, w in made.items()
        if x.startswith(_prefix(config)) and not any(part in x for part in parts)
    }
    before, after = "model.layers.0.pre_mlp_layer", "model.layers.0.post_attention_layer"
    one = {x.replace(before, after): w for x, w in one.items()}
    name = embedding(made)
    table = np.zeros_like(made[name])
    table[: len(inputs)] = inputs
    one[name] = table
    one["model.norm.weight"] = made[f"{name_of(config, 'shared_head.norm')}.weight"]
    one["lm_head.weight"] = made.get("lm_head.weight", made[name])
    config = copy.deepcopy(config)
    text = text_config(config)
    text.pop("num_nextn_predict_layers", None)
    text |= {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "first_k_dense_replace": 0,
        "tie_word_embeddings": False,
    }
    if "mlp_layer_types" in text:
        text["mlp_layer_types"] = text["mlp_layer_types"][-1:]
    if config["model_type"].startswith("mimo"):
        text |= {"hybrid_layer_pattern": [1], "moe_layer_freq": [0]}
        text |= {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
    return config, one
