"""Mistral's own folders convert as Hugging Face's of the same models; tekken's tokens."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.gguf import GGUFFile
from pyllama.convert import convert
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.mistral import read_params
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.convert.tokens.vocabulary import read_vocabulary
from pyllama.errors import ModelError, PyllamaError
from pyllama.tokenizer import load_tokenizer

from ..arch.checkpoints import write_checkpoint
from ..models import hf_weights
from .folders import Bytes, write_safetensors

_PARTS = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "block_sparse_moe": "feed_forward",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
}
_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "norm_eps",
    "head_dim": "head_dim",
    "sliding_window": "sliding_window",
    "max_position_embeddings": "max_position_embeddings",
}


def own_name(name: str) -> str:
    for theirs, own in _PARTS.items():
        name = name.replace(theirs, own)
    return name.removeprefix("model.")


def own_order(x: np.ndarray, n_head: int) -> np.ndarray:
    """Row i of the first half of a head becomes row 2i, row i of the second half row 2i + 1."""
    out, half = np.empty_like(x), len(x) // n_head // 2
    for h in range(n_head):
        for i in range(half):
            out[2 * (h * half + i)] = x[2 * h * half + i]
            out[2 * (h * half + i) + 1] = x[(2 * h + 1) * half + i]
    return out


def own_folder(theirs: Path, own: Path, **more: Any) -> Path:
    """Mistral's folder of the model in Hugging Face's."""
    config = json.loads((theirs / "config.json").read_text())
    params = {_KEYS[key]: value for key, value in config.items() if key in _KEYS}
    params |= {"rope_theta": config["rope_parameters"]["rope_theta"]} | more
    own.mkdir()
    tensors = {}
    for name, stored in read_safetensors(theirs / "model.safetensors").items():
        x = stored.read()
        for part in ("q", "k"):
            if f".{part}_proj." in name:
                x = own_order(x, config[f"num_{'key_value' if part == 'k' else 'attention'}_heads"])
        tensors[own_name(name)] = x
    write_safetensors(own / "consolidated.safetensors", tensors)
    (own / "params.json").write_text(json.dumps(params))
    for file in theirs.glob("*"):
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, own)
    return own


YARN = {
    "factor": 16.0,
    "beta": 32.0,
    "alpha": 1.0,
    "original_max_position_embeddings": 16,
    "apply_scale": False,
}
TEMPERATURE = {"original_max_position_embeddings": 16, "beta": 0.1}


@pytest.mark.parametrize(
    ("variant", "more"),
    [
        ("mistral", {}),
        ("mixtral", {"moe": {"num_experts": 4, "num_experts_per_tok": 2}}),
        ("mistral3", {"yarn": YARN, "llama_4_scaling": TEMPERATURE}),
    ],
)
def test_both_folders_of_a_model_give_the_same_file(
    tmp_path: Path, variant: str, more: dict[str, Any]
) -> None:
    theirs = write_checkpoint(tmp_path / "theirs", variant)
    own = own_folder(theirs, tmp_path / "own", **more)
    first, second = (convert(f, tmp_path / f"{f.name}.gguf", "f32") for f in (theirs, own))
    wanted, read = hf_weights(first), hf_weights(second)
    assert list(read) == list(wanted)
    for name, x in wanted.items():
        np.testing.assert_array_equal(read[name], x, err_msg=name)
    with GGUFFile(first) as a, GGUFFile(second) as b:
        assert (a.metadata.keys() ^ b.metadata.keys()) <= {"general.basename"}
        for key in a.metadata.keys() & b.metadata.keys() - {"general.name", "general.basename"}:
            assert np.array_equal(a.metadata[key], b.metadata[key]), key


def test_eight_bits(tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path / "theirs", "mistral")
    own = own_folder(theirs, tmp_path / "own", quantization={"qformat_weight": "fp8_e4m3"})
    path = own / "consolidated.safetensors"
    stored: dict[str, Any] = {n: x.read() for n, x in read_safetensors(path).items()}
    name = "layers.1.attention.wq"
    shape = stored[f"{name}.weight"].shape
    codes = np.random.default_rng(0).integers(0x30, 0x38, shape).astype(np.uint8)  # 0.5 to 1
    stored[f"{name}.weight"] = Bytes("F8_E4M3", codes)
    stored[f"{name}.qscale_weight"] = np.float32(0.25).reshape(())
    stored[f"{name}.qscale_act"] = np.float32(3).reshape(())
    write_safetensors(path, stored)
    (read,) = (hf_weights(convert(own, tmp_path / "x.gguf", "f32")),)
    # GGUF's order of llama is Mistral's
    wanted = (0.5 + (codes - 0x30) / 16).astype(np.float32) * np.float32(0.25)
    np.testing.assert_array_equal(read["blk.1.attn_q.weight"], wanted)


def test_vision_and_shards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = write_checkpoint(tmp_path / "theirs", "mistral")
    own = own_folder(theirs, tmp_path / "own")
    path = own / "consolidated.safetensors"
    tensors = {n: x.read() for n, x in read_safetensors(path).items()}
    path.unlink()
    half = len(tensors) // 2
    parts = list(tensors.items())[:half], list(tensors.items())[half:]
    for i, part in enumerate(parts):
        eyes = {f"vision_encoder.{i}.weight": np.zeros(3, np.float32)}
        file = own / f"consolidated-0000{i + 1}-of-00002.safetensors"
        write_safetensors(file, dict(part) | eyes)
    read = hf_weights(convert(own, tmp_path / "x.gguf", "f32"))
    wanted = hf_weights(convert(theirs, tmp_path / "y.gguf", "f32"))
    assert read.keys() == wanted.keys()
    assert "2 tensors are skipped, such as 'vision_encoder.0.weight'" in caplog.text


PARAMS: dict[str, Any] = {
    "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "vocab_size": 512, "norm_eps": 1e-5,
}  # fmt: skip


def params(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    values = {k: v for k, v in {**PARAMS, **changes}.items() if v is not ...}
    (tmp_path / "params.json").write_text(json.dumps(values))
    return read_params(Folder(tmp_path))


def test_values_that_are_not_given(tmp_path: Path) -> None:
    assert params(tmp_path)["rope_parameters"]["rope_theta"] == 1e6
    with_window = params(tmp_path, sliding_window=4096)
    assert with_window["rope_parameters"]["rope_theta"] == 1e4
    assert with_window["sliding_window"] == 4096
    assert with_window["max_position_embeddings"] == 32768
    assert params(tmp_path, max_seq_len=8)["max_position_embeddings"] == 8
    assert params(tmp_path, tied_embeddings=True)["tie_word_embeddings"] is True
    yarn = params(tmp_path, yarn=YARN)["rope_parameters"]
    assert yarn["attention_factor"] == 1 and yarn["beta_slow"] == 1
    assert (
        "attention_factor"
        not in params(tmp_path, yarn=YARN | {"apply_scale": True})["rope_parameters"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": ...}, "dim is missing: not a model of Mistral's own form"),
        ({"hidden_dim": None}, "hidden_dim is missing"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is 512: latent attention is not supported"),
        ({"moe": 5}, "moe is 5, must be an object"),
        ({"moe": {"num_shared_experts": 1}}, "moe has shared experts"),
        ({"yarn": {"factor": 2}}, "yarn has no value for beta_fast"),
        ({"llama_4_scaling": TEMPERATURE}, "llama_4_scaling is there, but yarn is not"),
        ({"yarn": YARN, "llama_4_scaling": {"beta": 1}}, "of another length than yarn's"),
        ({"quantization": {"qformat_weight": "int4"}}, "qformat_weight is 'int4', supported is"),
        ({"quantization": "fp8"}, "quantization is 'fp8', must be an object"),
    ],
)
def test_other_variants_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        params(tmp_path, **changes)
    assert str(error.value).startswith(f"{tmp_path / 'params.json'}: ")
    assert "\n" not in str(error.value)


def test_a_whole_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path / "theirs", "mistral")
    own = own_folder(theirs, tmp_path / "own", n_heads=3)
    with pytest.raises(ModelError, match="rows are not 3 heads of an even size"):
        convert(own, tmp_path / "x.gguf")
    own = own_folder(theirs, tmp_path / "own2")
    path = own / "consolidated.safetensors"
    tensors = {n: x.read() for n, x in read_safetensors(path).items()}
    tensors["model.norm.weight"] = tensors["norm.weight"]
    write_safetensors(path, tensors)
    with pytest.raises(ModelError, match=r"two tensors are called 'model.norm.weight'"):
        convert(own, tmp_path / "x.gguf")
    tensors.pop("model.norm.weight")
    tensors["layers.0.attention.wx.weight"] = tensors["norm.weight"]
    write_safetensors(path, tensors)
    with pytest.raises(ModelError, match=r"'layers.0.attention.wx.weight' is unknown in a"):
        convert(own, tmp_path / "x.gguf")


# --- tekken.json ----------------------------------------------------------------------------------

N_SPECIAL = 4
WORDS = [b"he", b"ll", b"llo", b" w", b"hello", b" wo", b"\xc3\xa4", b"12"]


def tekken(**changes: Any) -> dict[str, Any]:
    tokens = [bytes([i]) for i in range(256)] + WORDS
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(x).decode(), "token_str": None}
        for i, x in enumerate(tokens)
    ]
    special = [
        {"rank": i, "token_str": text, "is_control": True}
        for i, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    sizes = {"default_vocab_size": len(tokens) - 1 + N_SPECIAL, "default_num_special_tokens": 4}
    return {"config": sizes, "vocab": vocab, "special_tokens": special} | changes


def keys_of(folder: Path, root: dict[str, Any]) -> dict[str, Any]:
    (folder / "tekken.json").write_text(json.dumps(root))
    return read_vocabulary(Folder(folder), {})


def test_tokens_merges_and_roles(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, tekken())
    p = "tokenizer.ggml."
    assert keys[p + "model"] == "gpt2" and keys[p + "pre"] == "tekken"
    tokens = keys[p + "tokens"]
    assert tokens[:N_SPECIAL] == ["<unk>", "<s>", "</s>", "<SPECIAL_3>"]
    assert tokens[N_SPECIAL + 32] == "Ġ" and tokens[-1] == "Ã¤"  # "12" is beyond the size
    assert len(tokens) == len(keys[p + "token_type"]) == 256 + len(WORDS) - 1 + N_SPECIAL
    assert keys[p + "token_type"] == [3] * N_SPECIAL + [1] * (len(tokens) - N_SPECIAL)
    # llo: l + lo is no pair, ll + o is; hello: he + llo alone
    assert keys[p + "merges"] == ["h e", "l l", "ll o", "Ġ w", "he llo", "Ġw o", "Ã ¤"]
    roles = [keys[f"{p}{role}_token_id"] for role in ("unknown", "bos", "eos", "padding")]
    assert roles == [0, 1, 2, 2] and keys[p + "add_bos_token"] is True
    tokenizer = load_tokenizer(keys, tmp_path)
    ids = tokenizer.encode("hello wo\u00e4", add_special=True)
    assert [tokens[i] for i in ids] == ["<s>", "hello", "Ġwo", "Ã¤"]


def test_special_tokens_of_old_files(tmp_path: Path) -> None:
    sizes = {"default_vocab_size": 256 + 22, "default_num_special_tokens": 22}
    root = {key: x for key, x in tekken(config=sizes).items() if key != "special_tokens"}
    tokens = keys_of(tmp_path, root)["tokenizer.ggml.tokens"]
    assert tokens[:4] == ["<unk>", "<s>", "</s>", "[INST]"]
    assert tokens[11] == "<pad>" and tokens[19:22] == [
        "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_21>"
    ]  # fmt: skip


def changed(change: Callable[[list[dict[str, Any]]], Any]) -> dict[str, Any]:
    root = tekken()
    change(root["vocab"])
    return root


def sizes(n_vocab: Any, n_special: Any) -> dict[str, Any]:
    config = {"default_vocab_size": n_vocab, "default_num_special_tokens": n_special}
    return tekken(config=config)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no config": (tekken(config=None), "None tokens, None of them special"),
    "text": (sizes("x", 4), "'x' tokens, 4 of them"),
    "endless": (sizes(2**40, 4), "1099511627776 tokens"),
    "special alone": (sizes(4, 4), "4 tokens, 4 of them"),
    "too few": (sizes(1000, 4), "264 tokens that are not special, must be 996"),
    "a rank": (changed(lambda v: v[5].update(rank=6)), "token 5 has the rank 6"),
    "no bytes": (changed(lambda v: v[5].update(token_bytes="")), "token 5 has .* the bytes ''"),
    "no base 64": (changed(lambda v: v[5].update(token_bytes="*")), "token 5 has .* the bytes"),
    "twice": (changed(lambda v: v[5].update(token_bytes="AA==")), "token 5 has .* the bytes"),
    "long": (
        changed(lambda v: v[256].update(token_bytes="A" * 4096)),
        "token 256 has the rank 256 and the bytes",
    ),
    "no pair": (
        changed(lambda v: v[256].update(token_bytes="YWJj")),
        "token 256, b'abc', is no pair of tokens",
    ),
    "a special token": (
        tekken(special_tokens=[{"rank": 4, "token_str": "x"}]),
        "the special token 'x' has rank 4",
    ),
}


@pytest.mark.parametrize(("root", "message"), BAD.values(), ids=BAD)
def test_damaged_files_are_refused(tmp_path: Path, root: dict[str, Any], message: str) -> None:
    with pytest.raises(PyllamaError, match=message) as error:
        keys_of(tmp_path, root)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)
