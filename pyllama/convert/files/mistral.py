"""Reads Mistral's own folders (params.json, consolidated.safetensors) in Hugging Face's terms.

    if is_mistral(folder):
        config = read_params(folder)                        # as in a config.json
        tensors = rename_tensors(folder, read_checkpoint(folder))
        tensors = rotate_halves(tensors, config)            # after they are decoded

Architectures see what they see of Hugging Face's folder of the same model: its names, and matrices
of queries and keys for RoPE on pairs (i, i + d/2) of a head, where Mistral's rotate (2i, 2i + 1).
Source: mistral-inference, ``TransformerArgs``; vLLM, ``transformers_utils/configs/mistral.py``;
llama.cpp, ``conversion/mistral.py``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...errors import ModelError
from ...inputs.budget import shown
from ...mapping.rules import rope_halves
from .decoded import CheckpointTensor, DecodedTensor
from .folder import Folder
from .stored import Floats, StoredTensor

log = logging.getLogger(__name__)

_PARAMS = "params.json"
_SIZES = {  # names in params.json -> in config.json
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
}
_OPTIONS = {
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
    "activation": "hidden_act",
    "quantization_config": "quantization_config",
}
_N_CTX = 32768  # of Mistral 7B, whose file does not say
_NAMES = {  # parts of tensors' names -> Hugging Face's, in the order in which they are tried
    r"tok_embeddings": "model.embed_tokens",
    r"norm": "model.norm",
    r"output": "lm_head",
    r"layers\.(\d+)\.attention_norm": r"model.layers.\1.input_layernorm",
    r"layers\.(\d+)\.ffn_norm": r"model.layers.\1.post_attention_layernorm",
    r"layers\.(\d+)\.attention\.w([qkvo])": r"model.layers.\1.self_attn.\2_proj",
    r"layers\.(\d+)\.feed_forward\.w1": r"model.layers.\1.mlp.gate_proj",
    r"layers\.(\d+)\.feed_forward\.w2": r"model.layers.\1.mlp.down_proj",
    r"layers\.(\d+)\.feed_forward\.w3": r"model.layers.\1.mlp.up_proj",
    r"layers\.(\d+)\.(?:feed_forward|block_sparse_moe)\.(gate|experts\.\d+\.w[123])":
        r"model.layers.\1.block_sparse_moe.\2",
}  # fmt: skip
_RENAMED = [
    (re.compile(rf"{ours}(\.[a-z_]+)", re.ASCII), theirs) for ours, theirs in _NAMES.items()
]
_OTHER_MEDIA = re.compile(
    r"(?:vision_encoder|vision_language_adapter|patch_merger|pre_mm_projector_norm)\."
)
_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(?:weight|bias)")


def is_mistral(folder: Folder) -> bool:
    """Return whether a folder has Mistral's own files alone."""
    return folder.has(_PARAMS) and not folder.has("config.json")


def read_params(folder: Folder) -> dict[str, Any]:
    """Return params.json as the config.json of the same model.

    Raises:
        ModelError: it cannot be read, or is of a variant that is not supported.
    """
    params = folder.json(_PARAMS)
    try:
        return _config(params)
    except ModelError as error:
        raise ModelError(f"{folder.path / _PARAMS}: {error}") from None


def _config(params: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in _SIZES if params.get(name) is None]
    if missing:
        raise ModelError(f"{missing[0]} is missing: not a model of Mistral's own form")
    for name in ("kv_lora_rank", "q_lora_rank"):
        if params.get(name) is not None:
            raise ModelError(f"{name} is {shown(params[name])}: latent attention is not supported")
    both = {**_SIZES, **_OPTIONS}
    config = {both[name]: params[name] for name in both if params.get(name) is not None}
    n_ctx = params.get("max_position_embeddings") or params.get("max_seq_len") or _N_CTX
    config |= {"max_position_embeddings": n_ctx, "model_type": "mistral"}
    # mistral-inference's default depends on the window
    theta = params.get("rope_theta") or (1e4 if params.get("sliding_window") else 1e6)
    rope = {"rope_type": "default", "rope_theta": theta} | _yarn(params)
    config |= {"rope_parameters": rope, "architectures": ["MistralForCausalLM"]}
    if "llama_4_scaling_beta" in rope:
        config |= {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]}
    if params.get("moe") is not None:
        config |= _experts(_object(params, "moe"))
    if params.get("quantization") is not None:
        kind = _object(params, "quantization").get("qformat_weight")
        if kind != "fp8_e4m3":
            raise ModelError(f"qformat_weight is {shown(kind)}, supported is fp8_e4m3")
        config["quantization_config"] = {"quant_method": "fp8"}
    return config


def _object(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = params.get(name)
    if not isinstance(value, dict):
        raise ModelError(f"{name} is {shown(value)}, must be an object")
    return value


def _yarn(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RoPE parameters of YaRN, and of the temperature that comes with it."""
    if params.get("yarn") is None:
        if params.get("llama_4_scaling") is not None:
            raise ModelError("llama_4_scaling is there, but yarn is not")
        return {}
    yarn = _object(params, "yarn")
    original = yarn.get("original_max_position_embeddings")
    rope = {
        "rope_type": "yarn",
        "factor": yarn.get("factor"),
        "beta_fast": yarn.get("beta"),
        "beta_slow": yarn.get("alpha"),
        "original_max_position_embeddings": original,
    }
    missing = [name for name, value in rope.items() if value is None]
    if missing:
        raise ModelError(f"yarn has no value for {missing[0]}")
    if params.get("llama_4_scaling") is None:
        return rope if yarn.get("apply_scale") else rope | {"attention_factor": 1.0}
    scaling = _object(params, "llama_4_scaling")
    if yarn.get("apply_scale") or scaling.get("original_max_position_embeddings") != original:
        raise ModelError("llama_4_scaling with apply_scale, or of another length than yarn's")
    temperature = {"llama_4_scaling_beta": scaling.get("beta")}
    return rope | temperature | {"mscale": 1.0, "mscale_all_dim": 1.0}


def _experts(moe: Mapping[str, Any]) -> dict[str, Any]:
    if moe.get("num_shared_experts") or moe.get("expert_hidden_dim"):
        raise ModelError("moe has shared experts or experts of another size: not supported")
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": moe.get("num_experts"),
        "num_experts_per_tok": moe.get("num_experts_per_tok"),
    }


def rename_tensors(folder: Folder, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of the text model under Hugging Face's names; others as they are.

    Raises:
        ModelError: two would have the same name.
    """
    renamed: dict[str, StoredTensor] = {}
    others: list[str] = []
    for name, tensor in tensors.items():
        if _OTHER_MEDIA.match(name):
            others.append(name)
            continue
        new = _rename(name)
        if new in renamed:
            raise ModelError(f"{tensor.path}: two tensors are called {shown(new)}")
        renamed[new] = tensor
    if others:
        log.warning(
            "%s: only the text model is converted: %d tensors are skipped, such as %s",
            folder.path, len(others), shown(others[0]),
        )  # fmt: skip
    return renamed


def _rename(name: str) -> str:
    for pattern, theirs in _RENAMED:
        match = pattern.fullmatch(name)
        if match is not None:
            return match.expand(theirs) + match[match.lastindex or 0]
    return name


def rotate_halves(
    tensors: Mapping[str, CheckpointTensor], config: Mapping[str, Any]
) -> dict[str, CheckpointTensor]:
    """Return the tensors with the rows of queries and keys in Hugging Face's order."""
    heads = {"q": config["num_attention_heads"]}
    heads["k"] = config.get("num_key_value_heads") or heads["q"]
    found = dict(tensors)
    for name, tensor in tensors.items():
        match = _ROTATED.fullmatch(name)
        if match is not None:
            sources = tensor.sources if isinstance(tensor, DecodedTensor) else (tensor,)
            read = partial(_read_halves, tensor, heads[match[1]])
            found[name] = DecodedTensor(tensor.shape, sources, read)
    return found


def _read_halves(tensor: CheckpointTensor, n_head: int) -> Floats:
    return rope_halves(tensor.read(), n_head)
