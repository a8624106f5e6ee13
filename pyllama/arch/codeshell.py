"""CodeShell: StarCoder2's graph with one matrix for queries, keys and values.

Source: Xie et al. 2024, "CodeShell Technical Report"; llama.cpp, ``llm_build_codeshell``.
"""

from __future__ import annotations

from pyggml.tensor import Tensor

from ..graph.builder import GraphBuilder
from ..graph.decoder import layer_norm_decoder
from ..graph.tensors import without
from ..mapping.rules import Config, Convert, Keys, base_keys, check_config
from . import gpt2, starcoder2

HPARAMS = starcoder2.HPARAMS
TENSORS = {
    **without(gpt2.TENSORS, "position_embd", "token_embd", "output.weight?"),
    "token_embd.weight?": ("n_embd", "n_vocab"),  # tied to the output
    "output.weight": ("n_embd", "n_vocab"),
}


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    tied = "token_embd.weight" not in b.weights
    return layer_norm_decoder(b, "gelu", b.embed("output.weight" if tied else "token_embd.weight"))


def _keys(config: Config) -> Keys:
    check_config(config, position_embedding_type="rope", rope_scaling=None)
    return base_keys(config) | {
        "feed_forward_length": 4 * int(config["n_embd"]),
        "attention.head_count_kv": int(config["num_query_groups"]),
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 1.0,
    }


CONVERT = Convert(
    models=("CodeShellForCausalLM",), tensors=gpt2.CONVERT.tensors, keys=_keys,
    ignored=("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias"),
)  # fmt: skip
