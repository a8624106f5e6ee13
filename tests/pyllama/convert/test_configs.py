"""Settings in config.json of published models that the tiny test checkpoints lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama.arch import get_arch
from pyllama.convert.files.folder import Folder, read_config
from pyllama.convert.plan import _any_of, find_arch, name_finder
from pyllama.errors import ModelError


def test_falcon_40b_with_its_original_config() -> None:
    config = {"hidden_size": 64, "n_head": 4, "n_head_kv": 2, "n_layer": 1, "parallel_attn": True}
    convert = get_arch("falcon").CONVERT
    assert convert.keys(config)["attention.head_count_kv"] == 2
    x = np.arange(8, dtype=np.float32)  # one row per head: q q k v, twice
    changed = convert.change("blk.0.attn_qkv.weight", x[:, None], config)
    assert changed["blk.0.attn_qkv.weight"][:, 0].tolist() == [0, 1, 4, 5, 2, 6, 3, 7]


def test_limits_of_time_steps() -> None:
    """Transformers 5 writes infinity as an object."""
    usual = {"hidden_size": 64, "num_hidden_layers": 1}
    for given, limits in (
        ([0.0, float("inf")], [None, None]),
        ([0.0, {"__float__": "Infinity"}], [None, None]),
        ([0.01, 0.5], [0.01, 0.5]),
    ):
        keys = get_arch("mamba2").CONVERT.keys(usual | {"time_step_limit": given})
        assert [keys.get(f"ssm.time_step_{end}") for end in ("min", "max")] == limits


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_decoders_that_became_encoders(arch: str) -> None:
    """As gte-Qwen2, whose tokens attend to all of their text."""
    convert = get_arch(arch).CONVERT
    usual = {
        "architectures": [convert.models[0]], "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 8,
    }  # fmt: skip
    for is_causal, key in ((None, None), (True, None), (False, False)):
        keys = convert.keys(convert.complete(usual | {"is_causal": is_causal}))
        assert keys.get("attention.causal") is key


def test_positions_of_roberta_begin_after_the_usual_padding() -> None:
    usual = {
        "hidden_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 514,
        "architectures": ["RobertaModel"],
    }  # fmt: skip
    keys = get_arch("bert").CONVERT.keys
    assert keys(usual | {"model_type": "roberta"})["context_length"] == 512
    assert keys(usual | {"model_type": "bert"})["context_length"] == 514


@pytest.mark.parametrize(
    "odd",
    [
        {"logit_scale": 0.5},
        {"norm_type": "low_precision_rmsnorm"},
        {"attn_config": {"sliding_window_size": 512}},
    ],
)
def test_unsupported_mpt_settings_are_refused(odd: dict[str, Any]) -> None:
    usual = {
        "d_model": 64, "n_heads": 4, "logit_scale": None, "norm_type": "low_precision_layernorm",
        "attn_config": {"sliding_window_size": -1, "qk_ln": False},
    }  # fmt: skip
    keys = get_arch("mpt").CONVERT.keys
    assert keys(usual)["embedding_length"] == 64
    with pytest.raises(ModelError, match=next(iter(odd.get("attn_config", odd)))):
        keys(usual | odd)


@pytest.mark.parametrize(("name", "window"), [("Llama", None), ("Mistral", 16), ("Mixtral", 16)])
def test_only_mistral_and_mixtral_have_a_sliding_window(name: str, window: int | None) -> None:
    config = {
        "architectures": [f"{name}ForCausalLM"], "vocab_size": 8, "sliding_window": 16,
        "head_dim": 4,
    }  # fmt: skip
    assert get_arch("llama").CONVERT.keys(config).get("attention.sliding_window") == window


def test_gemma_3_vision_config(tmp_path: Path) -> None:
    """The config.json of the 4B model; other releases use the tensor names of transformers 5."""
    text = {
        "architectures": None, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    arch = get_arch("gemma3")
    config, convert = read_config(Folder(tmp_path)), arch.CONVERT
    assert config["architectures"] == whole["architectures"]
    keys = convert.keys({**convert.defaults, **config})
    assert {
        "vocab_size": 262208, "context_length": 131072, "attention.head_count": 8,
        "attention.head_count_kv": 4, "attention.key_length": 256, "attention.scale": 1 / 16,
        "attention.sliding_window": 1024, "attention.sliding_window_pattern": 6,
        "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.scaling.factor": 8.0,
    }.items() <= keys.items()  # fmt: skip
    for prefix in ("model.", "language_model.model.", "model.language_model."):
        assert name_finder(arch, config)(f"{prefix}norm.weight") == ("output_norm.weight", -1)


def test_gemma_3n_has_rows_for_tokens_of_images() -> None:
    """No recorded text has such tokens; transformers takes row 0 of the per-layer embeddings."""
    change, x = get_arch("gemma3n").CONVERT.change, np.arange(6, dtype=np.float32).reshape(3, 2)
    (padded,) = change("per_layer_token_embd.weight", x, {"vocab_size": 5}).values()
    assert padded.tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [0, 1]]
    (padded,) = change("token_embd.weight", x, {"vocab_size": 4}).values()
    assert padded.tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    (same,) = change("blk.0.attn_q.weight", x, {"vocab_size": 5}).values()
    assert same is x


@pytest.mark.parametrize(
    ("arch", "odd", "named"),
    [
        ("llama4", {"no_rope_layer_interval": 2}, "no_rope_layer_interval is 2, must be 4"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 4}, "layer_types is"),
        ("persimmon", {"rope_parameters": {"partial_rotary_factor": 0.75}}, "is 0.75, must be 0.5"),
        ("apertus", {"hidden_act": "silu"}, "hidden_act is 'silu', must be 'xielu'"),
    ],
)
def test_layers_that_no_key_describes_are_refused(
    arch: str, odd: dict[str, Any], named: str
) -> None:
    convert = get_arch(arch).CONVERT
    usual = {
        "architectures": [convert.models[0]], "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "head_dim": 16, "vocab_size": 8, "intermediate_size": 96,
        "intermediate_size_mlp": 96, "num_local_experts": 4, "sliding_window": 8,
    }  # fmt: skip
    assert convert.keys(convert.complete({**usual, "sliding_window": None}))
    with pytest.raises(ModelError, match=named):
        convert.keys(convert.complete(usual | odd))


@pytest.mark.parametrize(
    ("arch", "name", "values"),
    [
        ("llama", "Llama", {"attention.layer_norm_rms_epsilon": 1e-6}),
        ("llama", "Mistral", {"attention.sliding_window": 4096}),
        ("llama", "Mixtral", {"rope.freq_base": 1e6}),
        ("qwen3", "Qwen3", {"attention.key_length": 128}),
        ("olmo2", "Olmo3", {"rope.freq_base": 5e5, "attention.sliding_window": 4096}),
        ("gptneox", "GPTNeoX", {"rope.dimension_count": 4, "hidden_act": "gelu_erf"}),
        ("granitehybrid", "GraniteMoeHybrid", {"attention.layer_norm_rms_epsilon": 1e-6}),
    ],
)
def test_values_of_the_class_where_config_json_has_none(
    arch: str, name: str, values: dict[str, Any]
) -> None:
    convert = get_arch(arch).CONVERT
    config = {
        "architectures": [f"{name}ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 8, "intermediate_size": 96,
        "shared_intermediate_size": 96, "mamba_expand": 2, "mamba_d_state": 8, "mamba_n_heads": 8,
        "mamba_n_groups": 1,
    }  # fmt: skip
    keys = convert.keys(convert.complete(config))
    assert {key: pytest.approx(value) for key, value in values.items()}.items() <= keys.items()
    given = {
        "rms_norm_eps": 1e-3, "sliding_window": 8, "rope_theta": 7.0, "head_dim": 32,
        "rotary_pct": 0.5, "hidden_act": "silu",
    }  # fmt: skip
    keys = convert.keys(convert.complete(config | given))
    assert not {key: pytest.approx(value) for key, value in values.items()}.items() & keys.items()


def test_dbrx_s_rope_base_is_that_of_the_model_first() -> None:
    config: dict[str, Any] = {
        "attn_config": {"rope_theta": 5e5, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    }
    keys = get_arch("dbrx").CONVERT.keys
    assert keys(config)["rope.freq_base"] == 5e5
    assert keys({**config, "rope_theta": 1e3})["rope.freq_base"] == 1e3


def test_experts_in_one_matrix() -> None:
    """transformers 5 has them so in memory, and some trainers save them as they are."""
    convert, config = get_arch("qwen3moe").CONVERT, {"hidden_size": 4}
    name = convert.tensors["model.layers.{i}.mlp.experts.gate_up_proj"].replace("{i}", "0")
    x = np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)  # expert, gates and ups, column
    for stored in (x, x.swapaxes(1, 2)):
        both = convert.change(name, stored, config)
        assert both["blk.0.ffn_gate_exps.weight"].tolist() == x[:, :3].tolist()
        assert both["blk.0.ffn_up_exps.weight"].tolist() == x[:, 3:].tolist()
    (down,) = convert.change("blk.0.ffn_down_exps.weight", x[:, :3].swapaxes(1, 2), config).values()
    assert down.shape == (2, 4, 3)


@pytest.mark.parametrize("name", ["LLaMAForCausalLM", "InternLM3ForCausalLM"])
def test_other_names_of_llama(name: str) -> None:
    config = {
        "architectures": [name], "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 8,
        "max_sequence_length": 2048,  # of the first conversions of LLaMA
    }  # fmt: skip
    found, arch = find_arch(Path(), config)
    assert (found, arch.CONVERT.keys(config)["context_length"]) == ("llama", 2048)


def test_kimi_k3_is_known_by_its_activation(tmp_path: Path) -> None:
    """Its text model has the class of Kimi-Linear, whose graph cannot run it."""
    linear = {"full_attn_layers": [2], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4}
    config: dict[str, Any] = {
        "architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 2, "kv_lora_rank": 8,
        "num_attention_heads": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
        "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.0, "linear_attn_config": linear, "moe_renormalize": True,
        "max_position_embeddings": 64, "mla_use_nope": True,
    }  # fmt: skip
    assert find_arch(tmp_path, config)[0] == "kimi-linear"
    config |= {
        "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    }  # fmt: skip
    name, arch = find_arch(tmp_path, config)
    keys = arch.CONVERT.keys(config)
    assert name == "kimi-k3" and keys["attn_res.block_size"] == 0
    assert keys["attention.head_count_kv"] == [0, 1]
    for odd in ({"mla_use_nope": False}, {"linear_attn_config": linear | {"num_heads": 2}}):
        with pytest.raises(ModelError, match="this variant is not supported"):
            arch.CONVERT.keys(config | odd)


def test_embedding_gemma_2_without_what_transformers_assumes() -> None:
    convert = get_arch("gemma-embedding2").CONVERT
    keys = convert.keys(convert.complete({"num_hidden_layers": 7}))
    pattern = keys["attention.sliding_window_pattern"]
    assert pattern == [True] * 5 + [False] * 2  # the last layer is never one with a window
    assert keys["attention.head_count_kv"] == [1 + slides for slides in pattern]
    assert (keys["attention.key_length"], keys["attention.key_length_swa"]) == (512, 256)
    assert (keys["attention.sliding_window"], keys["embedding_length_out"]) == (1024, 768)
    rope = {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6}}
    with pytest.raises(ModelError, match="rope_type is 'yarn', must be 'default'"):
        convert.keys(convert.complete({"rope_parameters": rope}))


@pytest.mark.parametrize(
    ("name", "model_type", "arch", "prefixes"),
    [
        ("AudioFlamingo3ForConditionalGeneration", "qwen2", "qwen2", ["language_model."]),
        ("DotsOCRForCausalLM", "dots_ocr", "qwen2", [""]),
        ("Exaone4_5_ForConditionalGeneration", "exaone4", "exaone4", ["", "language_model."]),
        ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text", "gemma4", []),
        ("Glm4vMoeForConditionalGeneration", "glm4v_moe_text", "glm4moe", []),
        ("JanusForConditionalGeneration", "llama", "llama", ["language_model."]),
        ("LlavaForConditionalGeneration", "mistral", "llama", ["language_model."]),
        ("LlavaStableLMEpochForCausalLM", "stablelm_epoch", "stablelm", [""]),
        ("MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text", "qwen35", []),
        ("Phi4ForCausalLMV", "phi4-siglip", "phi3", [""]),
        ("Qwen2AudioForConditionalGeneration", "qwen2", "qwen2", ["language_model."]),
        ("Qwen2VLModel", "qwen2_vl", "qwen2vl", [""]),
        ("Qwen2_5OmniModel", "qwen2_5_omni_text", "qwen2vl", ["thinker."]),
        ("Qwen3ASRForConditionalGeneration", "qwen3", "qwen3vl", ["thinker."]),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_text", "qwen3vlmoe", ["thinker."]),
        ("StepVLForConditionalGeneration", "qwen3", "qwen3", [""]),
        ("VLlama3ForCausalLM", "llama", "llama", []),
        ("VoxtralForConditionalGeneration", "llama", "llama", ["language_model."]),
    ],
)
def test_text_models_of_images_and_sounds(
    name: str, model_type: str, arch: str, prefixes: list[str]
) -> None:
    config = {"architectures": [name], "model_type": model_type}
    found, declared = find_arch(Path(), config)
    assert found == arch
    find = name_finder(declared, config)
    inner = "text_model" if name.startswith("VLlama") else "language_model"
    for start in [f"{prefix}model." for prefix in prefixes] or [f"model.{inner}."]:
        assert find(f"{start}embed_tokens.weight") == ("token_embd.weight", -1)
        assert find(f"{start}layers.12.input_layernorm.weight") or arch == "exaone4"
    media = _any_of(declared.CONVERT.other_media)
    assert not media("model.layers.12.mlp.up_proj.weight")


def test_llava_with_another_text_model_is_refused() -> None:
    config = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "gemma"}
    with pytest.raises(ModelError, match="LlavaForConditionalGeneration"):
        find_arch(Path(), config)


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("llama", ["model.vision_tower.layers.0.weight", "model.aligner.fc1.bias"]),
        ("llama", ["model.vqmodel.quantize.embedding.weight", "model.generation_head.vision_head"]),
        ("qwen2", ["audio_tower.conv1.bias", "multi_modal_projector.linear.weight"]),
        ("qwen2vl", ["thinker.visual.merger.mlp.0.bias", "talker.codec_head.weight"]),
        ("qwen3vlmoe", ["thinker.audio_tower.conv2d1.bias", "code2wav.upsample.0.0.conv.bias"]),
        ("qwen35", ["model.vision_tower.post_layernorm.bias", "model.merger.mlp.0.pre_norm.bias"]),
        ("qwen3", ["vision_model.ln_pre.weight", "vit_large_projector.weight"]),
    ],
)
def test_parts_for_images_and_sounds_are_left_out(arch: str, names: list[str]) -> None:
    media = _any_of(get_arch(arch).CONVERT.other_media)
    assert all(map(media, names))


def test_config_of_qwen_omni(tmp_path: Path) -> None:
    whole = {
        "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": 64},
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = read_config(Folder(tmp_path))
    assert (config["hidden_size"], config["model_type"]) == (64, "qwen2_5_omni_text")
    assert config["architectures"] == whole["architectures"]
