"""Tiny checkpoints with layers of multi-token prediction, and such a layer as a whole model.

    config, made = with_mtp("qwen35")              # for ``write_files``
    config, made = with_mtp("mimo2", 3)            # with three of them
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


def name_of(config: dict[str, Any], part: str, layer: int = 0) -> str:
    """The name in the checkpoint of a tensor that only such a layer has, without ``.weight``."""
    kind, prefix = config["model_type"], _prefix(config, layer)
    if kind.startswith("qwen"):
        return QWEN[part]
    if part != "shared_head.norm":
        return prefix + part
    if kind == "nemotron_h":
        return "mtp.layers.1.final_layernorm"
    end = {"step3p7": f"transformer.{part}"}.get(kind, part)
    return prefix + ("final_layernorm" if kind in FINAL_NORM else end)


def _prefix(config: dict[str, Any], layer: int = 0) -> str:
    """The beginning of the names of a layer's other tensors."""
    kind = config["model_type"]
    if kind.startswith("mimo"):
        return f"model.mtp.layers.{layer}."
    n_layer = text_config(config)["num_hidden_layers"]
    own = kind.startswith(("qwen", "nemotron"))
    return f"mtp.layers.{layer}." if own else f"model.layers.{n_layer + layer}."


def with_mtp(name: str, n: int = 1) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of a variant, with ``n`` layers of multi-token prediction."""
    config, record = copy.deepcopy(variants()[name][1]), recorded(name)
    shapes, text = shapes_of(record), text_config(config)
    parts = ("self_attn", "attention.kv_a_proj", "mixer.k_proj")
    attention = [x for x in shapes if any(part in x for part in parts)]
    last = max(int(x.split("layers.")[1].split(".")[0]) for x in attention)
    if name == "step35":
        last = 2  # with a window; the decoder's last layer has none, fewer heads and other limits
        text["layer_types"] += ["sliding_attention"] * n
    n_embd = text["hidden_size"]

    def of_layer(layer: int) -> dict[str, tuple[int, ...]]:
        prefix = f"layers.{layer}."
        return {x.split(prefix)[1]: ne for x, ne in shapes.items() if f".{prefix}" in f".{x}"}

    own = of_layer(last)
    if name == "mimo2":  # the attention of the last layer, the dense part of the first one
        own = {x: ne for x, ne in own.items() if not x.startswith(("mlp.", "post_attention_layer"))}
        own |= {x: ne for x, ne in of_layer(0).items() if x.startswith("mlp.")}
        own["pre_mlp_layernorm.weight"] = (n_embd,)
    elif not config["model_type"].startswith("qwen"):
        text["num_nextn_predict_layers"] = n
    more = {}
    for layer in range(n):
        more |= {f"{_prefix(config, layer)}{x}": ne for x, ne in own.items()}
        more[f"{name_of(config, 'eh_proj', layer)}.weight"] = (n_embd, 2 * n_embd)
        for part in ("enorm", "hnorm", "shared_head.norm"):
            more[f"{name_of(config, part, layer)}.weight"] = (n_embd,)
    if name.startswith("nemotron"):  # experts are a layer of their own in the checkpoint
        more |= {f"mtp.layers.1.{x}": ne for x, ne in of_layer(4).items()}
    return config, weights(config["model_type"], {**shapes, **more}, float(record["scale"]))


def embedding(made: Made) -> str:
    """The name of the tokens' embeddings."""
    ends = (".embed_tokens.weight", ".word_embeddings.weight", "backbone.embeddings.weight")
    return next(x for x in made if x.endswith(ends))


def inputs_of(config: dict[str, Any], made: Made, tokens: list[int], hidden: np.ndarray) -> Any:
    """What the layer computes first, float64[n, n_embd]: of tokens, and hidden states before each.

    Source: DeepSeek-AI 2024, "DeepSeek-V3", equation 21.
    """
    added = float(config["model_type"].startswith(("qwen", "step")))
    text = text_config(config)
    eps = text.get("rms_norm_eps", text.get("layer_norm_epsilon", 1e-6))

    def norm(x: np.ndarray, part: str) -> np.ndarray:
        weight = made[f"{name_of(config, part)}.weight"] + added
        if config["model_type"] == "cohere2_moe" and "rms_norm_eps" not in config:
            return layer_norm(x, weight, config["layer_norm_eps"])
        scaled: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
        return scaled

    embedded = made[embedding(made)][tokens].astype(np.float64)
    both = np.concatenate([norm(embedded, "enorm"), norm(hidden.astype(float), "hnorm")], 1)
    x: Any = both @ made[f"{name_of(config, 'eh_proj')}.weight"].T
    return x


def layer_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """A layer norm of each row."""
    x = x - x.mean(-1, keepdims=True)
    scaled: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return scaled


def alone(config: dict[str, Any], made: Made, inputs: Any) -> tuple[dict[str, Any], Made]:
    """The layer as a model of its own, whose token ``i`` has the embedding ``inputs[i]``."""
    parts = (*QWEN, "final_layernorm")
    if config["model_type"] == "nemotron_h":
        return _alone_of_two(config, made, inputs)
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
    if config["model_type"] == "step3p7":
        text |= {"layer_types": ["sliding_attention"], "partial_rotary_factors": [1.0]}
        text |= {"rope_theta": text["rope_theta"][1:2], "moe_layers_enum": "0"}
        text |= {"swiglu_limits": [None], "swiglu_limits_shared": [None]}
    if config["model_type"] == "cohere2_moe":
        text["layer_types"] = ["sliding_attention"]
    if "indexer_types" in text:
        text["indexer_types"] = ["full"]
    if "mlp_layer_types" in text:
        text["mlp_layer_types"] = text["mlp_layer_types"][-1:]
    if config["model_type"].startswith("mimo"):
        text |= {"hybrid_layer_pattern": [1], "moe_layer_freq": [0]}
        text |= {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
    return config, one


def _alone_of_two(config: dict[str, Any], made: Made, inputs: Any) -> tuple[dict[str, Any], Made]:
    """The layers of attention and of experts; the last norm of such a model is another one."""
    one = {
        f"backbone.layers.{layer}.{x.removeprefix(f'mtp.layers.{layer}.')}": w
        for layer in range(2)
        for x, w in made.items()
        if x.startswith(f"mtp.layers.{layer}.") and x.split(".")[3] in ("mixer", "norm")
    }
    table = np.zeros_like(made[embedding(made)])
    table[: len(inputs)] = inputs
    one |= {embedding(made): table, "lm_head.weight": made["lm_head.weight"]}
    one["backbone.norm_f.weight"] = made["backbone.norm_f.weight"]
    return {**config, "num_hidden_layers": 2, "hybrid_override_pattern": "*E"}, one
