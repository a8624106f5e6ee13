"""Nomic BERT with experts: BERT with rope; every n-th layer has experts without gates.

The bias that a checkpoint adds to the sum of a layer's experts is left out, as in llama.cpp.
Source: Nussbaum and Duderstadt 2025, "Training Sparse Mixture Of Experts Text Embedding Models";
llama.cpp, ``llama_model_nomic_bert_moe``.
"""

from __future__ import annotations

from ..graph.tensors import ENCODER, EXPERTS, tensors, without
from ..hparams import Got, Key, Values
from ..mapping.encoders import NOT_OF_ENCODERS
from ..mapping.rules import Array, Config, Convert, Keys, Tensors
from . import bert, nomic_bert

NAME = "nomic-bert-moe"


def _expert_layers(got: Got) -> tuple[bool, ...]:
    period = got["moe_every"]
    return tuple(period > 0 and i % period == 1 for i in range(got["n_layer"]))


HPARAMS: Values = {
    **nomic_bert.HPARAMS,
    "moe_every": Key("moe_every_n_layers", 0),
    "expert_layers": _expert_layers,
    "expert_weights_norm": False,
}

TENSORS = tensors({**ENCODER, **without(EXPERTS, "ffn_gate_exps")})

build_graph = bert.build_graph


def _keys(config: Config) -> Keys:
    return nomic_bert.nomic_keys(config, "gelu_erf", "gelu") | {
        "moe_every_n_layers": int(config["moe_every_n_layers"]),
        "expert_used_count": int(config["moe_top_k"]),
    }


def _change(name: str, x: Array, config: Config) -> Tensors:
    """Experts of checkpoints are rows of one matrix; that of ``down`` is transposed."""
    if "_exps." not in name:
        return {name: x}
    x = x.reshape(int(config["num_experts"]), -1, x.shape[-1])
    return {name: x.swapaxes(1, 2) if "down" in name else x}


_MLP = "encoder.layers.{i}.mlp"
CONVERT = Convert(
    models=("NomicBertModel",),
    accepts=lambda config: bool(config.get("moe_every_n_layers")),
    tensors={
        **nomic_bert.NAMES,
        f"{_MLP}.router.layer.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_MLP}.experts.mlp.w1": "blk.{i}.ffn_up_exps.weight",
        f"{_MLP}.experts.mlp.w2": "blk.{i}.ffn_down_exps.weight",
    },
    keys=_keys,
    change=_change,
    ignored=(*NOT_OF_ENCODERS, "*.mlp.experts.bias"),
)
