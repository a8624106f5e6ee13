"""OPT: layer norm, learned positions, biases, ReLU.

350M has its norms after attention and feed-forward, none at the end, and a narrower embedding with
two projection matrices. The first two rows of positions in checkpoints are unused; GGUF files do
not have them.
Source: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models".
"""

from __future__ import annotations

import numpy as np

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.ffn import ffn
from ..graph.tensors import QKV, tensors
from ..hparams import Key, Values
from ..mapping.rules import (
    Array,
    Config,
    Convert,
    Keys,
    Tensors,
    base_keys,
    check_config,
    hidden_act,
)

HPARAMS: Values = {
    "norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
    "n_rot": 0,
    "post_norm": Key("attention.post_norm", False),
    "n_embd_token": Key("token_embedding_length", 0),
}

TENSORS = tensors(
    {
        "blk.{i}.attn_norm.*": ("n_embd",),
        **QKV,
        "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
        "blk.{i}.ffn_norm.*": ("n_embd",),
        "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
        "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
        "output_norm.*?": ("n_embd_output_norm",),
        "project_out.weight": ("n_embd", "n_embd_token"),
        "project_in.weight": ("n_embd_token", "n_embd"),
        "position_embd.weight": ("n_embd", "n_ctx_train"),
        "token_embd.weight": ("n_embd_inp", "n_vocab"),
        "output.weight?": ("n_embd_inp", "n_vocab"),
    }
)


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    n_layer, post = b.hparams.n_layer, b.hparams.post_norm
    inp = b.embed("token_embd.weight")  # [n_embd_inp, T]
    if b.hparams.n_embd_token:
        inp = b.linear(inp, "project_in", "inp_proj")  # [n_embd, T]
    inp = b.add_positions(inp)
    for i in range(n_layer):

        def norm(x: Tensor, part: str, i: int = i) -> Tensor:
            return b.layer_norm(x, f"blk.{i}.{part}", f"{part}-{i}")

        cur = b.attention(*b.qkv(inp if post else norm(inp, "attn_norm"), i), i)  # [n_embd_q, T]
        cur, inp = b.select_outputs(i, cur, inp)
        inp = b.linear(cur, f"blk.{i}.attn_output", f"attn_out-{i}", residual=inp)
        inp = norm(inp, "attn_norm") if post else inp
        inp = ffn(b, inp if post else norm(inp, "ffn_norm"), i, "relu", residual=inp)
        inp = norm(inp, "ffn_norm") if post else inp
    if not post:
        inp = b.layer_norm(inp, "output_norm", "result_norm")
    if b.hparams.n_embd_token:
        inp = b.linear(inp, "project_out", "result_proj")  # [n_embd_inp, n_outputs]
    return b.output(inp)


def _keys(config: Config) -> Keys:
    check_config(config, _remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
    keys = base_keys(config) | {"attention.layer_norm_epsilon": np.float32(1e-5)}
    if not config.get("do_layer_norm_before", True):
        keys["attention.post_norm"] = True
    width = config.get("word_embed_proj_dim") or config["hidden_size"]
    if width != config["hidden_size"]:
        keys["token_embedding_length"] = int(width)
    return keys | hidden_act(config, "relu")


def _change(name: str, x: Array, config: Config) -> Tensors:
    return {name: x[2:] if name == "position_embd.weight" else x}


CONVERT = Convert(
    models=("OPTForCausalLM",),
    tensors={
        "model.decoder.embed_tokens.weight": "token_embd.weight",
        "model.decoder.embed_positions.weight": "position_embd.weight",
        "model.decoder.project_in.weight": "project_in.weight",
        "model.decoder.project_out.weight": "project_out.weight",
        "model.decoder.layers.{i}.self_attn_layer_norm.*": "blk.{i}.attn_norm.*",
        "model.decoder.layers.{i}.self_attn.q_proj.*": "blk.{i}.attn_q.*",
        "model.decoder.layers.{i}.self_attn.k_proj.*": "blk.{i}.attn_k.*",
        "model.decoder.layers.{i}.self_attn.v_proj.*": "blk.{i}.attn_v.*",
        "model.decoder.layers.{i}.self_attn.out_proj.*": "blk.{i}.attn_output.*",
        "model.decoder.layers.{i}.final_layer_norm.*": "blk.{i}.ffn_norm.*",
        "model.decoder.layers.{i}.fc1.*": "blk.{i}.ffn_up.*",
        "model.decoder.layers.{i}.fc2.*": "blk.{i}.ffn_down.*",
        "model.decoder.final_layer_norm.*": "output_norm.*",
        "lm_head.weight": "output.weight",
    },
    keys=_keys,
    change=_change,
    prefix="model.",
    add_bos=True,
    relu=True,
)
