"""Jamba: Mamba 1 with normalized dt, B and C, some attention without positions, some experts.

Source: Lieber et al. 2024, "Jamba"; llama.cpp, ``llama_model_jamba``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..graph import hybrid
from ..graph.mamba import SSM, SSM_TENSORS, states_of
from ..graph.mamba import mamba as mamba_part
from ..graph.tensors import EXPERTS, GATED_FFN, OUTPUT, only_in, tensors
from ..hparams import BY_ROUTER, Values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config, kv_heads
from . import granitehybrid, mamba

HPARAMS: Values = {
    **SSM,
    **hybrid.KINDS,
    "states": hybrid.states_where_recurrent(states_of),
    "n_rot": 0,
    "expert_layers": BY_ROUTER,
    "expert_weights_norm": False,
}

TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    **only_in(
        "recurs",
        tensors(
            {
                **SSM_TENSORS,
                "blk.{i}.ssm_dt_norm.weight": ("dt_rank",),
                "blk.{i}.ssm_b_norm.weight": ("d_state",),
                "blk.{i}.ssm_c_norm.weight": ("d_state",),
            }
        ),
    ),
    **hybrid.ATTENTION,
    "blk.{i}.ffn_norm.weight": ("n_embd",),
    **GATED_FFN,
    **EXPERTS,
    **OUTPUT,
}

build_graph = partial(hybrid.decoder, mixer=hybrid.attention_or(mamba_part))


def _keys(config: Config) -> Keys:
    check_config(config, hidden_act="silu")
    n_embd, n_head_kv = int(config["hidden_size"]), kv_heads(config)
    rank = config.get("mamba_dt_rank") or "auto"
    heads = [n_head_kv if attends else 0 for attends in granitehybrid.attention_layers(config)]
    return base_keys(config) | {
        "attention.head_count_kv": np.array(heads, np.int32),
        "ssm.conv_kernel": int(config.get("mamba_d_conv") or 4),
        "ssm.inner_size": int(config.get("mamba_expand") or 2) * n_embd,
        "ssm.state_size": int(config.get("mamba_d_state") or 16),
        "ssm.time_step_rank": -(n_embd // -16) if rank == "auto" else int(rank),
    }


_MAMBA, _FFN = "model.layers.{i}.mamba", "model.layers.{i}.feed_forward"
CONVERT = Convert(
    models=("JambaForCausalLM",),
    tensors={
        **granitehybrid.HYBRID_NAMES,
        f"{_FFN}.router.weight": "blk.{i}.ffn_gate_inp.weight",
        **{
            f"{_FFN}.experts.{{e}}.{part}_proj.weight": f"blk.{{i}}.ffn_{part}_exps.weight"
            for part in ("gate", "up", "down")
        },
        **mamba.names_in(_MAMBA, mamba.TENSOR_NAMES),
        **{
            f"{_MAMBA}.{part}_layernorm.weight": f"blk.{{i}}.ssm_{part}_norm.weight"
            for part in ("dt", "b", "c")
        },
    },
    keys=_keys,
    change=mamba.change,
    defaults={"rms_norm_eps": 1e-6, "attn_layer_period": 8, "attn_layer_offset": 4},
)
