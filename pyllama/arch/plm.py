"""PLM: latent attention with expanded keys and values, squared ReLU without a gate.

Source: Deng et al. 2025, "PLM: Efficient Peripheral Language Models Hardware-Co-Designed for
Ubiquitous Computing"; llama.cpp, ``llm_build_plm``.
"""

from __future__ import annotations

from functools import partial

from ..graph.attention import mla
from ..graph.tensors import DEEPSEEK_EXPERTS, without
from ..hparams import Values
from ..mapping.rules import Convert, hidden_act
from . import deepseek2, minicpm3

HPARAMS: Values = {**mla.HPARAMS}

TENSORS = without(deepseek2.TENSORS, *DEEPSEEK_EXPERTS, "ffn_gate.", "output.weight?")

build_graph = partial(deepseek2.decoder, act="relu_sqr")


CONVERT = Convert(
    models=("PLMForCausalLM",),
    tensors=deepseek2.DENSE,
    keys=lambda config: minicpm3.expanded_keys(config) | hidden_act(config, "relu_sqr"),
)
