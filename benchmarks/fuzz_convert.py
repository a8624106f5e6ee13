"""The files of checkpoint folders for ``benchmarks.fuzz``, and how they are read.

python -m benchmarks.fuzz safetensors torch config tokenizer.json tokenizer.model readme
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz import Files, FileType
from benchmarks.mutate import BYTES, Mutator, any_of, change_json, insert_piece, odd_value
from pyggml.errors import PyggmlError
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.files.checkpoint import read_checkpoint
from pyllama.convert.files.folder import Folder
from pyllama.convert.files.torch_writer import write_torch
from tests.pyllama.arch.variants import VARIANTS

_DATA = Path(__file__).parents[1] / "tests" / "data"
_LLAMA, _SPM, _BPE = _DATA / "hf_llama", _DATA / "tokenizer/llama", _DATA / "tokenizer/gpt2"
_REFUSALS = (PyggmlError,)


def _files(folder: Path, *names: str) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def _one(name: str, mutator: Mutator) -> Callable[[Files, Random], Files]:
    """Damage to one file."""
    return lambda files, rng: {**files, name: mutator(files[name], rng)}


def _any(mutators: dict[str, Mutator]) -> Callable[[Files, Random], Files]:
    """Damage to one or two of the files that are there."""

    def mutate(files: Files, rng: Random) -> Files:
        out = dict(files)
        for name in rng.sample(sorted(set(files) & set(mutators)), k=1):
            out[name] = mutators[name](out[name], rng)
        return out

    return mutate


# --- tables of tensors ----------------------------------------------------------------------------


def _safetensors_seeds() -> Sequence[Files]:
    def file(entries: dict[str, Any], data: bytes) -> bytes:
        text = json.dumps(entries).encode()
        return len(text).to_bytes(8, "little") + text + data

    types = (("BF16", 2), ("F16", 2), ("F32", 4), ("I64", 8), ("F8_E4M3", 1))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for i, (dtype, size) in enumerate(types * 3):
        entries[f"model.layers.{i}.weight"] = {
            "dtype": dtype, "shape": [4, i + 1], "data_offsets": [at, at + size * 4 * (i + 1)]
        }  # fmt: skip
        at += size * 4 * (i + 1)
    whole = file(entries, bytes(range(256)) * (at // 256 + 1))
    index = {"weight_map": dict.fromkeys(entries, "model-1.safetensors")}
    index["weight_map"].pop("__metadata__")
    return (
        {"model.safetensors": whole[: len(whole) - 256 + at % 256]},
        {"model-1.safetensors": whole, "model.safetensors.index.json": json.dumps(index).encode()},
    )


def _change_header(data: bytes, rng: Random) -> bytes:
    """Damage to the header alone; its length is right, mostly."""
    n = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + n], data[8 + n :]
    header = rng.choice((change_json, change_json, any_of(*BYTES)))(header, rng)
    return len(header).to_bytes(8, "little") + header + rest


def _read_tensors(folder: Path) -> None:
    for stored in read_checkpoint(Folder(folder)).values():
        stored.read()


_TABLE = any_of(_change_header, _change_header, *BYTES)
_safetensors = _any(
    {
        "model.safetensors": _TABLE,
        "model-1.safetensors": _TABLE,
        "model.safetensors.index.json": any_of(change_json, change_json, *BYTES),
    }
)

# --- PyTorch's files ------------------------------------------------------------------------------

_OPCODES = [
    *(bytes([code]) for code in b"()]}.0125NRabdehijlopqrstuU\x81\x85\x86\x87\x88\x89Q\x94\x93"),
    b"h\x00", b"q\x00", b"h\x01q\x02", b"(h\x00h\x00t", b"2\x86", b"\x85\x85\x85", b"2\x86q\x00",
    b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"\x8a\xff" + b"\x7f" * 255, b"K\x01", b"M\xff\xff",
    b"J\xff\xff\xff\x7f", b"X\x01\x00\x00\x00a", b"X\xff\xff\xff\xff", b"B\xff\xff\xff\xff",
    b"\x8b\xff\xff\xff\x7f", b"G\x7f\xf0\x00\x00\x00\x00\x00\x00", b"ctorch\nFloatStorage\n",
    b"ccollections\nOrderedDict\n", b"cos\nsystem\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_parameter\n", b"I1\n", b"I" + b"9" * 5000 + b"\n", b"S'\\q'\n",
    b"}" * 1000, b"]" * 1000, b"(" * 1000, b"\x95" + b"\xff" * 8, b"r\xff\xff\xff\xff",
    b"j\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"I01\n", b"L1L\n", b"F1.5\n", b"P1\n",
    b"V\\ud800\n",
]  # fmt: skip


def _torch_seeds() -> Sequence[Files]:
    import tempfile

    import numpy as np

    sample = _files(_DATA / "torch", "sample.bin")["sample.bin"]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.pt"
        write_torch(path, {f"w{i}": np.arange(3 * i, dtype=np.float16) for i in range(4)})
        return {"pytorch_model.bin": sample}, {"model_0.pt": path.read_bytes()}


def _change_pickle(data: bytes, rng: Random) -> bytes:
    """Damage to the pickle, in an archive that is whole, or nearly."""
    out = BytesIO()
    mutate = any_of(insert_piece(_OPCODES), insert_piece(_OPCODES), *BYTES)
    try:
        with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for info in old.infolist():
                piece = old.read(info)
                if info.filename.endswith("data.pkl"):
                    piece = mutate(piece, rng)
                elif rng.random() < 0.02:
                    continue
                name = info.filename if rng.random() > 0.01 else info.filename.upper()
                kind = rng.choice([zipfile.ZIP_STORED] * 60 + [zipfile.ZIP_DEFLATED])
                new.writestr(name, piece, kind)
    except Exception:  # damaged already
        return data
    return out.getvalue()


_ARCHIVE = any_of(_change_pickle, _change_pickle, *BYTES)
_torch = _any({"pytorch_model.bin": _ARCHIVE, "model_0.pt": _ARCHIVE})

# --- settings -------------------------------------------------------------------------------------


def _llama() -> dict[str, bytes]:
    names = ("config.json", "generation_config.json", "model.safetensors")
    return _files(_LLAMA, *names) | _files(_SPM, "tokenizer.model")


def _config_seeds() -> Sequence[Files]:
    def folder(config: Any) -> Files:
        return {"config.json": json.dumps(config).encode(), **_files(_SPM, "tokenizer.model")}

    tiny = [config for of_arch in VARIANTS.values() for config in of_arch.values()]
    return [_llama()] * len(tiny) + [folder(config) for config in tiny]


def _read_all(folder: Path) -> None:
    vocab_only = not any(folder.glob("*.safetensors"))
    convert(folder, options=ConvertOptions(dry_run=True, vocab_only=vocab_only))


_JSON = any_of(change_json, change_json, change_json, change_json, *BYTES)
_config = _any({"config.json": _JSON, "generation_config.json": _JSON})

# --- vocabularies ---------------------------------------------------------------------------------

_ATOMS = [
    "a", ".", r"\p{L}", r"\s", "[a-z]", "[^\\s]", r"\d", "(?=x)", "(?i:ss)", "^", "$", r"\b", " ?",
    "'s", r"\p{N}{1,3}", "[[a-z]--[b]]", "(?R)", "(a|b)", r"\1", "", "(?<=a)", "|", "(?", "[", ")",
]  # fmt: skip
_REPEATS = ["*", "+", "?", "{2}", "{1,50}", "{100}", "{,9}", "*?", "++", "{e<=2}", "{99999}", ""]


def _pattern(rng: Random) -> str:
    """A regular expression, maybe one of terrible size or time."""
    pattern = "".join(rng.choice(_ATOMS) + rng.choice(_REPEATS) for _ in range(rng.randint(1, 6)))
    for _ in range(rng.choice((0, 1, 3, 30))):
        pattern = f"(?:{pattern}){rng.choice(_REPEATS)}"
    return pattern


def _odd_step(rng: Random) -> Any:
    kinds = (
        "Split", "ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Metaspace",
        "BertPreTokenizer", "CharDelimiterSplit", "NFC", "NFKD", "Lowercase", "Prepend", "Replace",
        "Strip", "StripAccents", "Sequence", "TemplateProcessing",
    )  # fmt: skip
    if rng.random() < 0.3:
        return odd_value(rng)
    text = rng.choice(["", "x", "\u2581", "x" * 70_000, _pattern(rng)])
    step: dict[str, Any] = {
        "type": rng.choice(kinds),
        "pattern": {rng.choice(("Regex", "Regex", "String")): _pattern(rng) if text else ""},
        "behavior": rng.choice(["Isolated", "Removed", "Contiguous", "MergedWithNext", 5]),
        "content": text, "prepend": text, "replacement": text, "delimiter": text,
        "invert": rng.random() < 0.2,
    }  # fmt: skip
    step["normalizers"] = step["pretokenizers"] = [dict(step)] * rng.choice((1, 2, 90))
    step["single"] = [{"SpecialToken": {"id": "</s>"}}, {"Sequence": {"id": "A"}}, odd_value(rng)]
    return step


def _change_steps(data: bytes, rng: Random) -> bytes:
    """Other sections than there are."""
    try:
        root = json.loads(data)
        key = rng.choice(("normalizer", "pre_tokenizer", "decoder", "post_processor"))
        root[key] = _odd_step(rng)
        return json.dumps(root).encode()
    except (ValueError, TypeError, RecursionError):  # damaged already
        return data


def _tokenizer_json_seeds() -> Sequence[Files]:
    config = json.dumps({**VARIANTS["gpt2"]["gpt2"], "vocab_size": 512}).encode()
    settings = {
        "add_bos_token": True,
        "bos_token": {"content": "</s>"},
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        "added_tokens_decoder": {"2": {"content": "</s>", "special": True}},
    }
    texts = {"config.json": config, "tokenizer_config.json": json.dumps(settings).encode()}
    return (
        texts | _files(_BPE, "tokenizer.json"),
        texts | _files(_BPE, "tokenizer.json"),
        texts | _files(_BPE, "vocab.json", "merges.txt")
        | {"added_tokens.json": b'{"<x>": 511}', "special_tokens_map.json": b'{"eos_token": "x"}'},
    )  # fmt: skip


def _odd_json(data: bytes, rng: Random) -> bytes:
    return change_json(data, rng, lambda rng: rng.choice((odd_value, _odd_step))(rng))


_STEPS = any_of(_odd_json, _odd_json, _change_steps, _change_steps, *BYTES)
_tokenizer_json = _any(
    {
        "tokenizer.json": _STEPS,
        "tokenizer_config.json": _STEPS,
        "vocab.json": _JSON,
        "merges.txt": any_of(*BYTES, insert_piece([b"\n", b" ", b"a b\n", b"\xc4\xa0 ", b"\x00"])),
        "added_tokens.json": _JSON,
        "special_tokens_map.json": _JSON,
    }
)

_PIECES = [
    b"\n\x00", b"\n\x02\n\x00", b"\n\x05\n\x03abc", b"\x12\x02\x18\x02", b"\x1a\x02\x18\x00",
    b"\x12\x04\xa8\x02\xff\x01", b"\x1a\x06\x12\x04\xff\xff\xff\x7f", b"\n\xff\xff\xff\xff\x0f",
    b"\x15\x00\x00\xc0\x7f", b"\x18\x06", b"\x18\x02", b"\x18\x03", b"\x12\x05\x9a\x03\x02\xff\xff",
]  # fmt: skip
_MODEL = any_of(*BYTES, insert_piece(_PIECES))

# --- README.md ------------------------------------------------------------------------------------

_CARD = """---
license: apache-2.0
language: [en, no, de]
name: &n Tiny Model
version: 1.10
base_model:
- &b HuggingFaceTB/SmolLM-135M-v1.2-chat
- https://huggingface.co/org/name-7B
datasets: [a/b, *b]
tags: {x: *n, <<: {y: 2024-01-01}}
model-index:
- results: [{value: 0.5, args: [1, 2]}]
---
# Text
"""
_YAML = [
    b"&a ", b"*a", b"*b", b"&b ", b"[", b"]", b"{", b"}", b": ", b"- ", b"\n", b"  ", b"\t", b"? ",
    b"!!python/object/apply:os.system [x]", b"!!binary x", b"!!set ", b"!x ", b"<<: *a\n", b"|\n",
    b">\n", b"'", b'"', b"#", b"%YAML 9.9\n", b"---\n", b"...\n", b"1:2:3", b"0x" + b"f" * 5000,
    b"~", b"null", b"2024-01-01", b".inf", b"[*b, *b]", b"&c [*b, *b, *b, *b]", b"[" * 100,
    b"-" * 300, b"a-" * 8000, b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x00", b"\\ud800",
    b'"\\ud800"', b"x: &c [*a, *a]\n", b"\na: &a [x, x]\n", b"base_model: [",
]  # fmt: skip
_README = any_of(*BYTES, *[insert_piece(_YAML)] * 4)

TYPES = (
    FileType("safetensors", _safetensors_seeds, _safetensors, _read_tensors, _REFUSALS),
    FileType("torch", _torch_seeds, _torch, _read_tensors, _REFUSALS),
    FileType("config", _config_seeds, _config, _read_all, _REFUSALS),
    FileType("tokenizer.json", _tokenizer_json_seeds, _tokenizer_json, _read_all, _REFUSALS),
    FileType(
        "tokenizer.model",
        lambda: [{k: v for k, v in _llama().items() if k != "model.safetensors"}],
        _one("tokenizer.model", _MODEL),
        _read_all,
        _REFUSALS,
    ),
    FileType(
        "readme",
        lambda: [{k: v for k, v in _llama().items() if k != "model.safetensors"}
                 | {"README.md": _CARD.encode()}],
        _one("README.md", _README),
        _read_all,
        _REFUSALS,
    ),
)  # fmt: skip
