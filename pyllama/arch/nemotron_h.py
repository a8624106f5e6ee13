"""Nemotron-H: each layer is either Mamba 2, attention without positions, or squared-ReLU MLP.

Source: NVIDIA 2025, "Nemotron-H"; llama.cpp, ``llama_model_nemotron_h``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pyggml.tensor import Tensor

from ..graph import hybrid
from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.mamba import SSM2, SSM2_TENSORS, mamba2, states2_of
from ..graph.tensors import OUTPUT, only_in, tensors
from ..hparams import Key, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, kv_heads
from . import mamba
from . import mamba2 as mamba2_arch

HPARAMS: Values = {
    **SSM2,
    **hybrid.KINDS,
    "recurs": lambda got: tuple(
        int(not n_kv and not n_ff)
        for n_kv, n_ff in zip(got["n_head_kv_arr"], got["n_ff_arr"], strict=True)
    ),
    "states": hybrid.states_where_recurrent(states2_of),
    "n_rot": 0,
    "rms_eps": Key("attention.layer_norm_rms_epsilon", 0.0),
    "layer_eps": Key("attention.layer_norm_epsilon", 0.0),
    "norm_eps": lambda got: got["rms_eps"] or got["layer_eps"],
}

MIXERS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **only_in("recurs", tensors(SSM2_TENSORS)),
    **hybrid.ATTENTION,
}
TENSORS = tensors(
    {
        **MIXERS,
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        **OUTPUT,
    }
)


def decoder(b: GraphBuilder, feed_forward: hybrid.Mixer) -> Tensor:
    """All layers and the logits; ``feed_forward`` is that of the layers which are one."""

    def part(b: GraphBuilder, x: Tensor, i: int) -> Tensor:
        if b.hparams.n_head_kv_arr[i]:
            return hybrid.attention(b, x, i)
        return (mamba2 if b.hparams.states[i] else feed_forward)(b, x, i)

    return mamba.decoder(b, part)


build_graph = partial(decoder, feed_forward=partial(ffn, act="relu_sqr"))


def kinds(config: Config) -> str:
    """A letter for each layer: M for Mamba 2, * for attention, - for an MLP, E for experts."""
    letters = {
        "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*",
        "mlp": "-", "moe": "E",
    }  # fmt: skip
    given = config.get("hybrid_override_pattern") or config["layers_block_type"]
    return "".join(letters.get(kind, kind) for kind in given)


def by_layer(config: Config, letter: str, n: int) -> np.ndarray:
    """``n`` in the layers of a kind, and 0 in the others."""
    return np.array([n if kind == letter else 0 for kind in kinds(config)], np.int32)


def keys(config: Config) -> Keys:
    """The keys of Nemotron-H with and without experts."""
    check_config(config, mlp_hidden_act="relu2", mamba_hidden_act="silu")
    head_dim = int(config.get("head_dim") or config["attention_head_dim"])
    n_head = int(config["mamba_num_heads"])
    found = base_keys(config)
    if "E" not in kinds(config):  # transformers writes the numbers of experts of any model
        found = {key: x for key, x in found.items() if not key.startswith("expert_")}
    return found | {
        "context_length": 1 << 20,  # as in llama.cpp: there is no limit
        "block_count": len(kinds(config)),
        "attention.head_count_kv": by_layer(config, "*", kv_heads(config)),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": found["attention.layer_norm_epsilon"],
        "feed_forward_length": by_layer(config, "-", int(config["intermediate_size"])),
        "rope.dimension_count": int(config["hidden_size"]) // int(config["num_attention_heads"]),
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": int(config["conv_kernel"]),
        "ssm.inner_size": n_head * int(config["mamba_head_dim"]),
        "ssm.state_size": int(config["ssm_state_size"]),
        "ssm.time_step_rank": n_head,
        "ssm.group_count": int(config["n_groups"]),
    }


_NAMES = {
    **mamba.OUTER_NAMES,
    **mamba2_arch.TENSOR_NAMES,
    **{
        f"backbone.layers.{{i}}.mixer.{theirs}_proj.*": f"blk.{{i}}.{ours}.*"
        for theirs, ours in (
            ("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output"),
            ("up", "ffn_up"), ("down", "ffn_down"),
        )
    },
}  # fmt: skip

CONVERT = Convert(
    models=("NemotronHForCausalLM",),
    tensors={**_NAMES, **{k.replace("backbone.", "model."): x for k, x in _NAMES.items()}},
    accepts=lambda config: "E" not in kinds(config),
    keys=keys,
    change=mamba2_arch.change,
    ignored=("mtp.*",),
    defaults={"layer_norm_epsilon": 1e-5, "conv_kernel": 4, "n_groups": 8, "ssm_state_size": 128},
)
