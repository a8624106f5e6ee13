"""StarCoder: GPT-2's graph with one head of keys and values.

Source: Li et al. 2023, "StarCoder: may the source be with you!"; llama.cpp,
``llm_build_starcoder``.
"""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Array, Config, Keys, Tensors, regroup_qkv
from . import gpt2

HPARAMS = gpt2.HPARAMS
TENSORS = gpt2.TENSORS
build_graph = gpt2.build_graph


def _multi_query(config: Config) -> bool:
    return bool(config.get("multi_query", True))


def _keys(config: Config) -> Keys:
    n_head_kv = 1 if _multi_query(config) else int(config["n_head"])
    return gpt2.CONVERT.keys(config) | {"attention.head_count_kv": n_head_kv}


def _change(name: str, x: Array, config: Config) -> Tensors:
    if ".attn_qkv." in name and not _multi_query(config):
        x = regroup_qkv(x, int(config["n_head"]), int(config["n_head"]))
    return {name: x}


CONVERT = replace(gpt2.CONVERT, models=("GPTBigCodeForCausalLM",), keys=_keys, change=_change)
