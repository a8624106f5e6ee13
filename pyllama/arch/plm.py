"""PLM: latent attention with expanded keys and values, squared ReLU without a gate.

Source: Deng et al. 2025, "PLM: Efficient Peripheral Language Models Hardware-Co-Designed for
Ubiquitous Computing"; llama.cpp, ``llm_build_plm``.
"""

from __future__ import annotations

from typing import Any

from pyggml.tensor import Tensor

from ..graph import mla
from ..graph.builder import GraphBuilder
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import Values
from ..mapping.rules import Config, Convert, hidden_act
from . import deepseek2, minicpm3

HPARAMS: Values = {**mla.HPARAMS}

TENSORS = without(deepseek2.TENSORS, *DEEPSEEK_EXPERTS, "ffn_gate.", "output.weight?")


def build_graph(b: GraphBuilder) -> Tensor:
    """The graph of one ubatch; returns the logits [n_vocab, n_outputs]."""
    return deepseek2.decoder(b, "relu_sqr")


def _keys(config: Config) -> dict[str, Any]:
    return minicpm3.expanded_keys(config) | hidden_act(config, "relu_sqr")


CONVERT = Convert(
    models=("PLMForCausalLM",),
    tensors=deepseek2.DENSE,
    keys=_keys,
)
