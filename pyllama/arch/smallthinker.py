"""SmallThinker: the router reads the layer's input before attention, ReLU experts, windows.

Layers without a window have no rope.
Source: Song et al. 2025, "SmallThinker"; llama.cpp, ``llama_model_smallthinker``.
"""

from __future__ import annotations

import pyggml as ops
from pyggml.tensor import Tensor

from ..graph.builder import HEAD_PREDICTOR, GraphBuilder
from ..graph.experts import experts
from ..graph.sparse.weights import ANY
from ..graph.tensors import EXPERTS, GATED_FFN, without
from ..hparams import GATINGS, Values, nope_without_window, window_values
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import qwen2

HPARAMS: Values = {
    "rope_neox": True,
    "relu_experts": True,
    **window_values(4, 0),
    "swa_dense_first": True,
    "nope_layers": nope_without_window,
}

TENSORS = {
    **without(qwen2.TENSORS, *GATED_FFN),
    **EXPERTS,
    f"{HEAD_PREDICTOR}.weight?": (ANY,),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    inp = b.embed("token_embd.weight")  # [n_embd, T]
    for i in range(b.hparams.n_layer):
        cur = b.rms_norm(inp, f"blk.{i}.attn_norm", f"attn_norm-{i}")
        cur = b.self_attention(cur, i)
        cur, inp = b.select_outputs(i, cur, inp)
        router_in = inp
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        cur = b.rms_norm(inp, f"blk.{i}.ffn_norm", f"ffn_norm-{i}")
        cur = experts(b, cur, i, "relu", router_in=router_in)
        inp = b.layer_output(ops.add(b.ctx, cur, inp), i)
    return b.output(b.rms_norm(inp, "output_norm", "result_norm"))


def _keys(config: Config) -> Keys:
    n_layer, n_exp = int(config["num_hidden_layers"]), int(config["moe_ffn_hidden_size"])
    windows = [bool(x) for x in config.get("sliding_window_layout") or [0] * n_layer]
    if any(windows):
        check_config(config, rope_layout=[int(x) for x in windows])
    else:
        check_config(config, rope_layout=[1] * n_layer)
    gating = "softmax" if config.get("moe_primary_router_apply_softmax") else "sigmoid"
    keys = base_keys(config) | {
        "feed_forward_length": n_exp,
        "expert_count": int(config["moe_num_primary_experts"]),
        "expert_used_count": int(config["moe_num_active_primary_experts"]),
        "expert_feed_forward_length": n_exp,
        "expert_gating_func": GATINGS.index(gating),
    }
    if any(windows):
        keys["attention.sliding_window"] = int(config["sliding_window_size"])
        if windows != [i % 4 != 0 for i in range(n_layer)]:  # llama.cpp's default
            keys["attention.sliding_window_pattern"] = windows
    return keys


_MOE = "model.layers.{i}.block_sparse_moe"
CONVERT = Convert(
    models=("SmallThinkerForCausalLM",),
    tensors={
        **without(qwen2.CONVERT.tensors, ".mlp."),
        f"{_MOE}.primary_router.weight": "blk.{i}.ffn_gate_inp.weight",
        f"{_MOE}.experts.{{e}}.gate.weight": "blk.{i}.ffn_gate_exps.weight",
        f"{_MOE}.experts.{{e}}.up.weight": "blk.{i}.ffn_up_exps.weight",
        f"{_MOE}.experts.{{e}}.down.weight": "blk.{i}.ffn_down_exps.weight",
        "model.lm_head_profiler.weight": f"{HEAD_PREDICTOR}.weight",
    },
    keys=_keys,
    relu=True,
)
