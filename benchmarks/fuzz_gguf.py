"""The other file types for ``benchmarks.fuzz``, and how they are read.

python -m benchmarks.fuzz gguf model state imatrix imatrix-dat statistics logits gpuidx rows

Files go through the tools' own commands, so the judgement is of the output that users see: an exit
code, and at most one line that begins with "error:".
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.fuzz import Files, FileType
from benchmarks.mutate import BYTES, Mutator, any_of, change_json, insert_piece
from pyggml.dtype import GGMLType, row_size
from pyggml.errors import PyggmlError
from pyggml.gguf import GGUFFile
from pyggml.gguf.encode import Entry, encode_header, encode_value
from pyggml.rounding import round_up

_MODEL = "x.gguf"


class Refused(Exception):
    """A tool ended with a one-line error."""


def run(name: str, *args: str | Path) -> None:
    """A command of the tools. Raises: Refused; AssertionError: it fails in another way."""
    import importlib

    module = importlib.import_module(f"pyllama_cli.commands.{name}")
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            module.command.main(args=[str(arg) for arg in args], prog_name=name)
        except SystemExit as end:
            code = end.code
    errors = [line for line in err.getvalue().splitlines() if line.startswith("error:")]
    text = err.getvalue()
    if code not in (0, 1, 2) or len(errors) > 1 or "Traceback" in text:
        raise AssertionError(f"{name}: exit code {code}: {text[-300:]}")
    if "internal error" in text or "out of memory" in text or code == 2:
        raise AssertionError(f"{name}: {errors[0]}")
    if code and not errors and name not in ("gguf.diff",):
        raise AssertionError(f"{name}: exit code {code} without a word: {text[-300:]}")
    if errors:
        raise Refused(errors[0])


def run_all(*calls: Callable[[], object]) -> None:
    """All of these, whether or not one is refused; the last refusal is raised."""
    last: BaseException | None = None
    for call in calls:
        try:
            call()
        except (Refused, PyggmlError) as error:
            last = error
    if last is not None:
        raise last


# --- damage to GGUF files -------------------------------------------------------------------------

_INTS = (0, 1, 2, 3, 7, 31, 32, 255, 4096, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e38, float("inf"), -float("inf"), float("nan"))
_TEXTS = ("", "x", "llama", "gpt2", "bert", "\x1b[2J", "a\nb", "\u202e", 5000 * "y", "{% for %}")
_ENDINGS = (
    "block_count", "embedding_length", "context_length", "feed_forward_length", "expert_count",
    "expert_used_count", "attention.head_count", "attention.head_count_kv", "rope.dimension_count",
    "attention.key_length", "attention.sliding_window", "rope.scaling.type", "rope.scaling.factor",
    "rope.freq_base", "attention.layer_norm_rms_epsilon", "vocab_size",
)  # fmt: skip


def odd_metadata(rng: Random) -> Any:
    """A value of any type that GGUF has, as ``encode_value`` takes it."""
    kinds = (np.uint8, np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
    kind = rng.choice(kinds)
    number = kind(rng.choice(_INTS) % 2 ** (8 * kind().itemsize - 1))
    return rng.choice((
        number, -np.int32(rng.choice((1, 2, 5))), np.float32(rng.choice(_FLOATS)),
        np.float64(rng.choice(_FLOATS)), rng.choice(_TEXTS), np.bool_(rng.random() < 0.5),
        np.full(rng.choice((0, 1, 3, 300)), number), np.full(2, np.float32(rng.choice(_FLOATS))),
        [rng.choice(_TEXTS) for _ in range(rng.choice((1, 3, 270)))], np.zeros(2, np.bool_),
    ))  # fmt: skip


def change_gguf(data: bytes, rng: Random) -> bytes:
    """One to three changes of metadata, of the tensor table or of values; the rest stays legal."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as there:
        there.write(data)
        there.flush()
        try:
            file = GGUFFile(there.name, mmap=False)
        except PyggmlError:
            return data
    metadata = file.typed_metadata()
    tensors = [
        [t.name, list(t.ne[: t.n_dims]), t.type, file.tensor_bytes(t.name).tobytes()]
        for t in file.tensors.values()
    ]
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((_change_key, _change_key, _change_tensor, _change_values))(
            metadata, tensors, rng
        )
    try:
        encoded = {key: encode_value(key, value) for key, value in metadata.items()}
    except PyggmlError:
        return data
    entries, pieces = [], []
    for name, ne, type, values in tensors:
        nbytes = max(row_size(type, ne[0] if ne else 1), 0) * int(np.prod(ne[1:], dtype=object))
        nbytes = min(nbytes, 1 << 20)
        entries.append(Entry(name, tuple(ne), type, nbytes))
        values = (values + bytes(max(0, nbytes - len(values))))[:nbytes]
        pieces.append(values + bytes(round_up(nbytes, 32) - nbytes))
    return encode_header(encoded, entries, 32, file.magic) + b"".join(pieces)


def _change_key(metadata: dict[str, Any], tensors: list[list[Any]], rng: Random) -> None:
    keys = list(metadata)
    if not keys:  # all are removed already
        return
    key = rng.choice(keys)
    ours = [k for k in keys if k.endswith(_ENDINGS) or k.startswith("general.")]
    if ours and rng.random() < 0.5:
        key = rng.choice(ours)
    kind = rng.randrange(5)
    if kind == 0:
        del metadata[key]
    elif kind == 1:
        arch = metadata.get("general.architecture")
        metadata[f"{arch}.{rng.choice(_ENDINGS)}"] = odd_metadata(rng)
    elif kind == 2 and isinstance(metadata[key], np.ndarray) and metadata[key].size:
        values = metadata[key].copy()
        values[rng.randrange(values.size)] = rng.choice((0, 1, 3, 100))
        metadata[key] = values[: rng.choice((values.size, values.size, 1, values.size // 2))]
    elif (
        kind == 3 and hasattr(metadata[key], "tolist") and not isinstance(metadata[key], np.generic)
    ):
        values = list(metadata[key].tolist())
        if values and isinstance(values[0], str):
            for _ in range(rng.choice((1, 5))):
                values[rng.randrange(len(values))] = rng.choice((*_TEXTS, *values[:3]))
            metadata[key] = values
    else:
        metadata[key] = odd_metadata(rng)


def _change_tensor(metadata: dict[str, Any], tensors: list[list[Any]], rng: Random) -> None:
    if not tensors:
        return
    one = rng.choice(tensors)
    kind = rng.randrange(6)
    if kind == 0:
        tensors.remove(one)
    elif kind == 1:
        one[2] = rng.choice(_KINDS)
    elif kind == 2:
        one[1] = [rng.choice((0, 1, 2, 32, 48, 256, *one[1])) for _ in range(rng.randrange(5))]
    elif kind == 3:
        one[0] = rng.choice((rng.choice(tensors)[0], "x", "blk.0.\x1b[2J.weight", "blk.99.x"))
    elif kind == 4:
        one[1] = one[1][::-1]
    else:
        tensors.append([rng.choice(("a", "output.weight", "rope_freqs.weight")), *one[1:]])
    if (one[1] or [1])[0] % one[2].block_size:
        one[2] = GGMLType.F32


_KINDS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.I32)


def _change_values(metadata: dict[str, Any], tensors: list[list[Any]], rng: Random) -> None:
    if not tensors:
        return
    one = rng.choice(tensors)
    if one[2] is GGMLType.F32 and one[3]:
        values = np.frombuffer(one[3], np.float32).copy()
        values[rng.randrange(values.size) : rng.choice((None, values.size))] = rng.choice(_FLOATS)
        one[3] = values.tobytes()
    else:
        one[3] = any_of(*BYTES)(one[3], rng)[: len(one[3])]


def _header(data: bytes, rng: Random) -> bytes:
    """Bytes of the header alone."""
    n = min(len(data), 20_000)
    return any_of(*BYTES)(data[:n], rng) + data[n:]


GGUF: Mutator = any_of(change_gguf, change_gguf, change_gguf, _header)


def _of(name: str, mutator: Mutator) -> Callable[[Files, Random], Files]:
    return lambda files, rng: {**files, name: mutator(files[name], rng)}


# --- models ---------------------------------------------------------------------------------------


@functools.cache
def _made(make: Callable[[Path], Path]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder)).read_bytes()


def _llama(folder: Path) -> Path:
    from tests.pyllama.models import Spec, random_weights, write_model

    spec = Spec(n_layer=1)
    more = {"tokenizer.chat_template": _TEMPLATES[0], "general.name": "x"}
    return write_model(folder / _MODEL, spec, random_weights(spec), metadata=more)


def _llama_q8(folder: Path) -> Path:
    from tests.pyllama.models import Spec, random_weights, write_model

    spec = Spec(n_layer=1, n_embd=64, n_ff=64, tied=False, bias=True, freqs=True)
    return write_model(folder / _MODEL, spec, random_weights(spec), GGMLType.Q8_0)


def _sparse(folder: Path) -> Path:
    from tests.pyllama.sparsity.files import sparse_file

    return sparse_file(folder, "llama_relu")


def _model_seeds() -> Sequence[Files]:
    return [
        {_MODEL: _made(make), "good.gguf": _made(make)} for make in (_llama, _llama_q8, _sparse)
    ]


def _pick(folder: Path, tools: Sequence[tuple[Any, ...]], n: int) -> None:
    """Some of the tools, chosen by the file, so that each mutation is read in the same way."""
    rng = Random(zlib.crc32((folder / _MODEL).read_bytes()))
    run_all(*(functools.partial(run, *tool) for tool in rng.sample(list(tools), n)))


def read_gguf(folder: Path) -> None:
    """Three of the tools that look into a file, change it or write it again."""
    x, good, new = folder / _MODEL, folder / "good.gguf", folder / "new.gguf"
    _pick(folder, (
        ("gguf.dump", x), ("gguf.dump", "--markdown", "--arrays", x), ("gguf.dump", "--json", x),
        ("gguf.diff", good, x), ("gguf.diff", "--json", x, good), ("gguf.hash", "--all", x),
        ("gguf.validate", x), ("gguf.split", "--split-max-tensors", "3", x, folder / "part"),
        ("gguf.merge", x, new), ("gguf.new", "--force", "--general-name", "y", x, new),
        ("gguf.set", "--dry-run", "--force", x, "llama.block_count", "3"),
        ("quantize", "--allow-requantize", x, new, "q8_0"),
        ("quantize", "--allow-requantize", "--dry-run", x, "q4_k_m"),
        ("tokenize", "-m", x, "-p", "AB C"), ("inspect.graph", "-m", x, "--svg", folder / "x.svg"),
    ), 3)  # fmt: skip


def read_model(folder: Path) -> None:
    """Load it, and generate, or look at it by another tool that runs it."""
    x = folder / _MODEL
    common = ("-m", x, "-c", "96", "-t", "1")
    (folder / "text").write_text("ABC " * 80)
    _pick(folder, (
        ("completion", *common, "-p", "A", "-n", "2", "-no-cnv", "--temp", "0"),
        ("completion", *common, "-p", "A", "-n", "2", "-cnv", "-st"),
        ("completion", *common, "-p", "A", "-n", "1", "-no-cnv", "--no-mmap", "--no-repack"),
        ("perplexity", *common, "-f", folder / "text", "--chunks", "1"),
    ), 1)  # fmt: skip


# --- what is made of models -----------------------------------------------------------------------


@functools.cache
def _context() -> Any:
    from pyllama import Batch, Context, Model

    with tempfile.TemporaryDirectory() as folder:
        model = Model.load(_llama(Path(folder)), use_mmap=False)
    context = Context(model, n_ctx=32, n_seq_max=2, n_threads=1)
    context.decode(Batch(list(range(3, 12))))
    context.decode(Batch([20, 21], seq_id=1))
    return context


def _state_seeds() -> Sequence[Files]:
    from pyllama.runtime.state import dump_state

    kept = []
    for seq in (None, 0, 1):
        kept.append({"x": b"".join(p.tobytes() for p in dump_state(_context(), [3, 4], seq=seq))})
    return kept


def _change_state(data: bytes, rng: Random) -> bytes:
    """Damage that the checksum does not find, mostly."""
    from pyllama.runtime.state import _HEAD, MAGIC, VERSION

    if rng.random() < 0.2 or len(data) < _HEAD.size:
        return any_of(*BYTES)(data, rng)
    size = _HEAD.unpack_from(data)[2]
    header, rest = data[_HEAD.size :][:size], data[_HEAD.size + size :]
    header = rng.choice((change_json, change_json, any_of(*BYTES)))(header, rng)
    if rng.random() < 0.3:
        rest = any_of(*BYTES)(rest, rng)
    body = header + b" " * (-(_HEAD.size + len(header)) % 64) + rest
    return _HEAD.pack(MAGIC, VERSION, len(body) - len(rest), zlib.crc32(body)) + body


def read_state(folder: Path) -> None:
    """As a whole state and as a sequence's; a token is decoded after it."""
    from pyllama import Batch
    from pyllama.engine import Engine, Lease
    from pyllama.engine.prompt_file import PromptFile
    from pyllama.runtime.state import load_state

    context = _context()
    run_all(
        lambda: load_state(context, folder / "x"),
        lambda: context.decode(Batch([7])),
        lambda: load_state(context, folder / "x", seq=1),
        lambda: context.decode(Batch([7], seq_id=1)),
        lambda: PromptFile(folder / "x").load(Lease(Engine(context, sequences=[0]))),
        context.kv.clear,
    )


def _wide(folder: Path) -> Path:
    from tests.pyllama.models import Spec, random_weights, write_model

    spec = Spec(n_layer=1, n_embd=256, n_ff=256, n_head=8, head_dim=32)
    return write_model(folder / _MODEL, spec, random_weights(spec))


def _importance() -> Any:
    from pyllama.quantize.importance import Importance, ImportanceEntry

    rng = np.random.default_rng(0)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
    sums = {f"blk.0.{n}.weight": rng.random((1, 256)).astype(np.float32) for n in names}
    entries = {name: ImportanceEntry(x, np.array([64.0])) for name, x in sums.items()}
    return Importance(entries, ["text"], n_chunks=2, chunk_size=32)


def _imatrix(folder: Path) -> Path:
    from pyllama.quantize.importance import write_importance

    write_importance(folder / "x", _importance())
    return folder / "x"


def _imatrix_dat(folder: Path) -> Path:
    parts = [struct.pack("<i", len(_importance().entries))]
    for name, entry in _importance().entries.items():
        parts += struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", 2, 256)
        parts.append(entry.sums.tobytes())
    (folder / "x").write_bytes(b"".join([*parts, struct.pack("<ii", 2, 1), b"t"]))
    return folder / "x"


def read_imatrix(folder: Path) -> None:
    """Statistics, a sum with another, and a quantization by it."""
    from pyllama.quantize.importance import read_importance

    model = folder / _MODEL
    model.write_bytes(_made(_wide))
    good = folder / "good"
    good.write_bytes(_made(_imatrix))
    run_all(
        lambda: read_importance(good).add(read_importance(folder / "x")),
        lambda: read_importance(folder / "x").add(read_importance(good)),
        lambda: run("imatrix", "--show-statistics", "--in-file", folder / "x"),
        lambda: run("quantize", "--imatrix", folder / "x", model, folder / "q.gguf", "q4_0"),
    )


def _statistics(folder: Path) -> Path:
    from pyllama.sparsity.stats import Statistics, save_stats

    rng = np.random.default_rng(0)
    with GGUFFile(_sparse_file(folder)) as file:
        from pyllama.sparsity.fingerprint import model_fingerprint

        n_ff = file.tensors["blk.0.ffn_up.weight"].ne[1]
        mark = model_fingerprint(file)
    shares, counts = rng.random(3), rng.integers(0, 50, (3, n_ff))
    save_stats(folder / "x", Statistics(
        "m", mark, 50, "predictor", 0.5, counts, (1, 4), rng.random((3, 2)), shares, shares, shares
    ))  # fmt: skip
    return folder / "x"


def _sparse_file(folder: Path) -> Path:
    (folder / _MODEL).write_bytes(_made(_sparse))
    return folder / _MODEL


def read_statistics(folder: Path) -> None:
    """What is computed of statistics, a copy, and a plan by them."""
    from pyllama.sparsity.stats import load_stats, save_stats

    def use() -> None:
        found = load_stats(folder / "x")
        save_stats(folder / "y", found)
        assert found.computed.shape == found.counts.shape

    model = _sparse_file(folder)
    budget = ("-m", model, "--vram-budget", "0.0001", "-c", "32", "-o", folder / "o.gpuidx")
    run_all(use, lambda: run("powerinfer.plan", *budget, "--stats", folder / "x"))


def _gpuidx(folder: Path) -> Path:
    from pyllama.sparsity.gpuidx import write_gpuidx
    from pyllama.sparsity.placement import NeuronSplit

    with GGUFFile(_sparse_file(folder)) as file:
        n_ff = file.tensors["blk.0.ffn_up.weight"].ne[1]
    ids = tuple(np.arange(i, n_ff, 2 + i).astype(np.int64) for i in range(3))
    write_gpuidx(folder / "x", NeuronSplit(n_ff, ids, ids), 1 << 20, "key")
    return folder / "x"


def read_plan(folder: Path) -> None:
    """As a plan that is given, and as one that is there already."""
    from pyllama.sparsity.gpuidx import check_split, read_gpuidx

    model = _sparse_file(folder)
    flags = ("-m", model, "--vram-budget", "0.0001", "-c", "32")
    run_all(
        lambda: check_split(read_gpuidx(folder / "x"), 3, 160),
        lambda: run("powerinfer.plan", *flags, "--gpu-index", folder / "x"),
        lambda: run("gguf.dump", folder / "x"),
    )


def _logits(folder: Path) -> Path:
    from pyllama.eval.saved_logits import logits_writer

    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 200, (2, 16)).astype(np.int32)
    with logits_writer(folder / "x", tokens, 261) as save:
        save(rng.standard_normal((2 * 7, 261)).astype(np.float32))
    return folder / "x"


def _change_logits(data: bytes, rng: Random) -> bytes:
    """Damage to the numbers in front, to the scales of rows, or anywhere."""
    kind = rng.randrange(3)
    if kind == 0:
        return any_of(*BYTES)(data[:148], rng) + data[148:]
    if kind == 1:
        out, row = bytearray(data), 2 * (262 + 4)
        for _ in range(rng.choice((1, 3))):
            at = 20 + 128 + row * rng.randrange(14) + rng.choice((0, 4))
            out[at : at + 4] = struct.pack("<f", rng.choice((*_FLOATS, 1e30, -1e30, 100.0)))
        return bytes(out)
    return any_of(*BYTES)(data, rng)


def read_logits(folder: Path) -> None:
    """Divergence from them, and its table."""
    from pyllama.eval.kl_divergence import kl_divergence
    from pyllama.eval.saved_logits import SavedLogits
    from pyllama_cli.tables import kl as kl_table

    saved = SavedLogits(folder / "x")
    for result in kl_divergence(_context(), saved):
        kl_table.chunk_line(result)
        kl_table.MIN_TOKENS = 1  # type: ignore[misc]
        text = kl_table.statistics(result)
        assert "inf" not in text.split("Cor(")[1].replace("-inf", "inf"), text


def _rows(folder: Path) -> Path:
    row = {
        "n_prompt": 8, "n_gen": 0, "n_depth": 0, "model_filename": "m", "model_type": "llama",
        "avg_ts": 2.5, "samples_ts": [2.5, 2.4], "n_batch": 32, "cpu_info": "c", "type_k": "f16",
    }  # fmt: skip
    (folder / "x").write_text(json.dumps([row, row | {"n_prompt": 0, "n_gen": 4}]))
    return folder / "x"


def read_rows(folder: Path) -> None:
    """Compared with good ones, either way."""
    (folder / "good").write_bytes(_made(_rows))
    run_all(
        lambda: run("bench", "--compare", folder / "x", folder / "good"),
        lambda: run("bench", "--compare", folder / "good", folder / "x"),
    )


_TEMPLATES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{% macro f(x, n) %}{{ x[n:] ~ (x * 2) | upper }}{% endmacro %}{% set ns = namespace(a=[]) %}"
    "{% for m in messages if m.role != 'system' %}{% set ns.a = ns.a + [m] %}{{ f(m.content, 1) }}"
    "{{ loop.index0 }}{% else %}{{ raise_exception('none') }}{% endfor %}{{ ns.a | tojson }}"
    "{{ strftime_now('%d %b') }}{{ messages | map(attribute='role') | join(',') }}",
)
_PIECES = tuple(piece.encode() for piece in (
    "{{", "}}", "{%", "%}", "{% for i in range(10**9) %}", "{% endfor %}", "{% if 1 %}",
    "{% endif %}", "{{ messages * 99999 }}", "{{ 'x' * 10**10 }}", "{{ 9**9**9 }}", " | list",
    "{{ ''.__class__ }}", "{{ messages.append(messages) }}", "{{ f(f, f) }}", " | tojson",
    "{% set a = a + a %}", "{{ raise_exception('\x1b[2J\n') }}", "{{ cycler(1) }}", "(" * 50,
    "{% include 'x' %}", "{% import 'os' as os %}", "{{ '%9999999999d' % 1 }}", "[" * 90, "{# ",
    " | center(10**9)", "{{ '{:>99999999}'.format(1) }}", " | indent(10**8)", "{% call f() %}",
    " | groupby('a')", " | sort", " | batch(1)", " | wordwrap(1)", "'", " | replace('', m)",
    "{{ lipsum() }}", "{{ joiner() }}", " | format(x=1)", " | attr('__init__')", " | map('list')",
))  # fmt: skip


def read_template(folder: Path) -> None:
    """Render a conversation with it."""
    from pyllama.chat.template import JinjaTemplate

    text = (folder / "x").read_bytes().decode("utf-8", "replace")
    template = JinjaTemplate(text, {"bos_token": "<s>", "eos_token": "</s>"})
    messages = [{"role": r, "content": "a b"} for r in ("system", "user", "assistant", "user")]
    template.render(messages)


def _type(
    name: str, make: Callable[[Path], Path], mutator: Mutator, read: Callable[[Path], Any]
) -> FileType:
    """A type of one file, called x."""
    return FileType(
        name, lambda: [{"x": _made(make)}], _of("x", mutator), read, (Refused, PyggmlError)
    )


_JSON: Mutator = any_of(change_json, change_json, change_json, *BYTES)
TYPES = (
    FileType("gguf", _model_seeds, _of(_MODEL, GGUF), read_gguf, (Refused, PyggmlError)),
    FileType("model", _model_seeds, _of(_MODEL, GGUF), read_model, (Refused, PyggmlError)),
    FileType("state", _state_seeds, _of("x", _change_state), read_state, (PyggmlError,)),
    _type("imatrix", _imatrix, GGUF, read_imatrix),
    _type("imatrix-dat", _imatrix_dat, any_of(*BYTES), read_imatrix),
    _type("statistics", _statistics, _JSON, read_statistics),
    _type("logits", _logits, _change_logits, read_logits),
    _type("gpuidx", _gpuidx, GGUF, read_plan),
    _type("rows", _rows, _JSON, read_rows),
    FileType(
        "template",
        lambda: [{"x": text.encode()} for text in _TEMPLATES],
        _of("x", any_of(insert_piece(_PIECES), insert_piece(_PIECES), *BYTES)),
        read_template,
        (PyggmlError,),
    ),
)
