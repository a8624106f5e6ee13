"""Plans which GGUF tensors a checkpoint's tensors become, before anything is written.

    for planned in plan_tensors(folder, read_checkpoint(folder), config, arch):
        planned.name, planned.shape, planned.parts

The rules are the architecture's ``CONVERT``. Its ``change`` is called with zeros of a tensor's
shape to find the names and shapes of the results; values are read when they are written. Nothing is
cached: a tensor that is split into three is read three times.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from pyggml.dtype import GGMLType

from ..arch import Arch, arch_names, get_arch
from ..errors import ModelError
from ..hparams import HParams
from ..inputs.budget import shown
from ..mapping.rules import Array, Config, Tensors
from ..runtime.loader import qkv_patterns, tensor_sizes
from .files.decoded import Blocks, CheckpointTensor, DecodedTensor, PackedBlocks
from .files.stored import StoredTensor
from .nextn import NEXTN_NAMES

log = logging.getLogger(__name__)

_NUMBER = r"0|[1-9]\d{0,3}"  # a layer or expert: up to 9,999
_GROUPS = {
    **{f"{{{letter}}}": f"(?P<{letter}>{_NUMBER})" for letter in "ije"},
    "*": "(?P<end>weight|bias)",
}
_LAYER = re.compile(r"blk\.(\d+)\.")
_AROUND_TEXT = re.compile(r"\b(?:language_model|text_model|thinker|llm)\.")
_NO_EXPERT = -1  # in place of the expert's number, for tensors without experts


@dataclass(frozen=True)
class ConvertedTensor:
    """A tensor of the output file.

    Attributes:
        name: GGUF's name.
        shape: NumPy order.
        parts: functions that return its float32 values in order: one, or one per expert.
        dtypes: dtypes of the source tensors.
        blocks: functions that return the same parts as blocks of ``block_type``, if the checkpoint
            has them so.
        scales: tensors beside the blocks, by the end of their names: numbers that multiply them.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Callable[[], Array], ...]
    dtypes: frozenset[str] = frozenset()
    blocks: tuple[Callable[[], Blocks], ...] = ()
    block_type: GGMLType = GGMLType.MXFP4
    scales: Mapping[str, Array] = field(default_factory=dict)


# Sources of a GGUF tensor: expert (or ``_NO_EXPERT``) -> (name, tensor)
_Members = dict[int, tuple[str, CheckpointTensor]]


def find_arch(folder: Path, config: Config) -> tuple[str, Arch]:
    """Return the name and declaration of config.json's architecture.

    If several have its class, as text models of one multimodal class, ``model_type`` is the name,
    or the first is returned.

    Raises:
        ModelError: no architecture has the class.
    """
    classes = config.get("architectures")
    models = {x for x in classes if isinstance(x, str)} if isinstance(classes, list) else set()
    found: dict[str, Arch] = {}
    for name in arch_names():
        arch = get_arch(name)
        if not models.intersection(arch.CONVERT.models):
            continue
        with config_errors(folder, arch):
            if arch.CONVERT.accepts(config):
                found[name] = arch
    if found:
        name = str(config.get("model_type"))
        return (name, found[name]) if name in found else next(iter(found.items()))
    raise ModelError(
        f"{folder / 'config.json'}: architectures is {shown(classes)}, which is not supported; "
        "docs/architectures.md lists the supported ones, docs/add-a-model.md says how to add one"
    )


@contextmanager
def config_errors(folder: Path, arch: Arch) -> Iterator[None]:
    """Convert errors of an architecture's functions on config.json to a one-line ModelError."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = f"{error!s:.200}" + (" is missing" if isinstance(error, KeyError) else "")
        raise ModelError(
            f"{folder / 'config.json'}: {problem}: not a valid {arch.CONVERT.models[0]}"
        ) from None


def plan_tensors(
    folder: Path, checkpoint: Mapping[str, CheckpointTensor], config: Config, arch: Arch
) -> list[ConvertedTensor]:
    """Return the tensors to write, by layer and in the order of ``arch.TENSORS``.

    Raises:
        ModelError: a tensor is unknown, has an invalid shape, or two map to the same name.
    """
    sources = _sources(folder, checkpoint, config, arch)
    if "output.weight?" in arch.TENSORS and _is_tied(sources, config):
        del sources["output.weight"]
    change = _Change(folder, config, arch)
    planned: dict[str, ConvertedTensor] = {}
    results = [one for source in sources.items() for one in change.plan(*source)]
    with config_errors(folder, arch):
        extra = arch.CONVERT.extra(config)
        of_rope = {name for name in extra if name.startswith("rope_")}
        if others := of_rope - {pattern.rstrip("?") for pattern in arch.TENSORS}:
            raise ModelError(
                f"config.json: the RoPE scaling needs {min(others)!r}, which this architecture "
                "lacks; this variant is not supported"
            )
    results += [
        ConvertedTensor(name, x.shape, (partial(np.asarray, x),)) for name, x in extra.items()
    ]
    for one in results:
        if one.name in planned:
            raise ModelError(f"{folder}: two tensors of the checkpoint become {one.name!r}")
        planned[one.name] = one
    order = {pattern.rstrip("?"): i for i, pattern in enumerate(arch.TENSORS)}

    def place(name: str) -> tuple[int, int]:
        match = _LAYER.search(name)
        layer = int(match[1]) if match else 1 << 30
        return layer, order.get(_pattern(name), len(order))

    return sorted(planned.values(), key=lambda one: place(one.name))


def of_layers(planned: list[ConvertedTensor], n_layer: int) -> list[ConvertedTensor]:
    """The tensors of layers from ``n_layer`` on, and those of the whole model that they need."""
    whole = ("token_embd.weight", "output_norm.weight", "output.weight")
    layers = {one.name: _LAYER.match(one.name) for one in planned}
    return [
        one
        for one in planned
        if one.name in whole or ((layer := layers[one.name]) and int(layer[1]) >= n_layer)
    ]


def check_missing(
    folder: Path, planned: list[ConvertedTensor], hparams: HParams, arch: Arch
) -> None:
    """Raise ModelError for the first required tensor of ``arch.TENSORS`` that is not planned."""
    have = {one.name for one in planned}
    for pattern, sizes in qkv_patterns(arch.TENSORS, have).items():
        for i in range(hparams.n_layer if "{i}" in pattern else 1):
            name = pattern.replace("{i}", str(i))
            absent = 0 in tensor_sizes(hparams.of_layer(i), sizes)
            if name.endswith("?") or name in have or absent:
                continue
            stem, _, end = pattern.rpartition(".")
            theirs = [
                their_name.replace("{i}", str(i)).replace("*", end).replace("{e}", "0")
                for their_name, ours in arch.CONVERT.tensors.items()
                if ours.partition("[")[0] in (pattern, f"{stem}.*")
            ]
            two_stacks = any("{j}" in ours for ours in arch.CONVERT.tensors.values())
            which = f" (from {theirs[0]!r})" if theirs and not two_stacks else ""
            raise ModelError(f"{folder}: the tensor for {name!r}{which} is missing")


def _sources(
    folder: Path, checkpoint: Mapping[str, CheckpointTensor], config: Config, arch: Arch
) -> dict[str, _Members]:
    """Return the checkpoint's tensors grouped by GGUF name."""
    convert = arch.CONVERT
    with config_errors(folder, arch):
        find = name_finder(arch, config)
    sources: dict[str, _Members] = {}
    others: list[str] = []
    ignored, other_media = _any_of(convert.ignored), _any_of(convert.other_media)
    for theirs, stored in checkpoint.items():
        whole = theirs, convert.prefix + theirs
        if ignored(whole[0]) or ignored(whole[1]):
            continue
        if other_media(theirs):
            others.append(theirs)
            continue
        found = find(theirs)
        if found is None:
            raise ModelError(
                f"{stored.path}: tensor {shown(theirs)} is unknown in a "
                f"{convert.models[0]}: this variant is not supported"
            )
        name, number = found
        members = sources.setdefault(name, {})
        if members and name in convert.shared:
            continue
        if number in members:
            raise ModelError(
                f"{folder}: {shown(members[number][0])} and {shown(theirs)} both become {name!r}"
            )
        members[number] = theirs, stored
    if others:
        log.warning(
            "%s: only the text model is converted: %d tensors are skipped, such as %s",
            folder, len(others), shown(others[0]),
        )  # fmt: skip
    for name, members in sources.items():
        if _pattern(name) in convert.products:
            sources[name] = _product(folder, name, members)
    return sources


def _product(folder: Path, name: str, factors: _Members) -> _Members:
    """The product of two tensors of as many elements, as a vector. Raises: ModelError."""
    stored = [factor for _, factor in factors.values()]
    sizes = [prod(factor.shape) for factor in stored]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        names = ", ".join(shown(theirs) for theirs, _ in factors.values())
        raise ModelError(
            f"{folder}: {name!r} is the product of two tensors of as many elements, found {names} "
            f"of {sizes}"
        )
    sources = [x.sources if isinstance(x, DecodedTensor) else (x,) for x in stored]

    def multiply() -> Array:
        a, b = (factor.read().reshape(-1) for factor in stored)
        return a * b

    product = DecodedTensor((sizes[0],), (*sources[0], *sources[1]), multiply)
    return {_NO_EXPERT: (next(iter(factors.values()))[0], product)}


def name_finder(arch: Arch, config: Config) -> Callable[[str], tuple[str, int] | None]:
    """A function from a checkpoint's name to GGUF's and the number of an expert; -1 without."""
    convert = arch.CONVERT
    n_first = convert.first_stack(config)
    patterns = [
        (_compile(theirs), ours) for theirs, ours in {**convert.tensors, **NEXTN_NAMES}.items()
    ]

    def find(name: str) -> tuple[str, int] | None:
        name = _of_text(name)
        found = _find(name, patterns, n_first) or _find(convert.prefix + name, patterns, n_first)
        return found and (convert.rename(found[0], config), found[1])

    return find


def value_keys(
    folder: Path, checkpoint: Mapping[str, CheckpointTensor], arch: Arch
) -> dict[str, float | list[float] | Array]:
    """Return the keys of ``arch.CONVERT.values`` and ``arrays``.

    Raises:
        ModelError: a tensor is not one number, or not the only array of whole numbers.
    """
    found: dict[str, dict[int, float]] = {}
    for theirs, key in arch.CONVERT.values.items():
        pattern = _compile(theirs)
        for name, stored in checkpoint.items():
            match = pattern.fullmatch(_of_text(name))
            if match is None:
                continue
            if prod(stored.shape) != 1:
                raise ModelError(
                    f"{folder}: {shown(name)} has the shape {list(stored.shape)}, must be 1 number"
                )
            found.setdefault(key, {})[int(match.groupdict().get("i", -1))] = stored.read().item()
    arrays: dict[str, Array] = {}
    for theirs, key in arch.CONVERT.arrays.items():
        pattern = _compile(theirs)
        for name, stored in checkpoint.items():
            if pattern.fullmatch(_of_text(name)) is None:
                continue
            if not isinstance(stored, StoredTensor) or stored.dtype != "I64" or key in arrays:
                raise ModelError(f"{folder}: {shown(name)} must be the only array, of I64")
            arrays[key] = stored.raw().astype(np.uint64)
    return arrays | {
        key: values[-1] if -1 in values else [values[i] for i in sorted(values)]
        for key, values in found.items()
    }


def _of_text(name: str) -> str:
    """The name of a tensor without those of modules around the text model."""
    return _AROUND_TEXT.sub("", name)


def _any_of(patterns: Iterable[str]) -> Callable[[str], object]:
    """Return a predicate: whether a name matches one of the ``fnmatch`` patterns."""
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


def _compile(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[ije]\}|\*)", pattern)
    return re.compile("".join(_GROUPS.get(part, re.escape(part)) for part in parts))


def _find(
    name: str, patterns: list[tuple[re.Pattern[str], str]], n_first: int
) -> tuple[str, int] | None:
    """Return the GGUF name and the part (an expert) of a checkpoint's name; None if unknown."""
    for pattern, ours in patterns:
        match = pattern.fullmatch(name)
        if match is not None:
            groups = match.groupdict()
            ours, _, part = ours.partition("[")
            ours = ours.replace("{i}", groups.get("i", "")).replace("*", groups.get("end", ""))
            ours = ours.replace("{j}", str(n_first + int(groups.get("j", 0))))
            if part == "+]":
                return f"{ours}+", int(groups["e"])
            return ours, int(part.rstrip("]") or groups.get("e", _NO_EXPERT))
    return None


def _pattern(name: str) -> str:
    return _LAYER.sub("blk.{i}.", name, count=1)


def _is_tied(sources: Mapping[str, _Members], config: Config) -> bool:
    """Return whether the checkpoint's output matrix is a copy of the embedding.

    ``tie_word_embeddings`` alone does not say so: transformers and llama.cpp use a matrix of other
    values all the same.
    """
    if "output.weight" not in sources or "token_embd.weight" not in sources:
        return False
    output, embd = (sources[name][_NO_EXPERT][1] for name in ("output.weight", "token_embd.weight"))
    if not (isinstance(output, StoredTensor) and isinstance(embd, StoredTensor)):
        return False
    same = (output.path, output.offset) == (embd.path, embd.offset)
    return (same or config.get("tie_word_embeddings") is True) and output.equals(embd)


def _scales(members: list[PackedBlocks]) -> dict[str, Array]:
    """Scales by name, of a matrix or of all its experts; none of a name whose scales are all 1."""
    found: dict[str, Array] = {}
    for key in dict.fromkeys(key for blocks in members for key in blocks.scales):
        one = np.ones(1, np.float32)
        parts = [blocks.scales.get(key, one) for blocks in members]
        n_expert = members[0].shape[0] if len(members[0].shape) > 2 else 1
        x = np.concatenate(parts) if len(parts) > 1 else np.resize(parts[0], n_expert)
        if not np.allclose(x, 1, rtol=0, atol=1e-6):
            found[key] = x
    return found


class _Change:
    """Plans the application of an architecture's ``change`` to tensors."""

    def __init__(self, folder: Path, config: Config, arch: Arch) -> None:
        self.folder, self.config, self.change = folder, config, arch.CONVERT.change
        self.tried: dict[tuple[str, tuple[int, ...]], dict[str, tuple[int, ...]]] = {}

    def plan(self, source: str, numbered: _Members) -> list[ConvertedTensor]:
        """Return the GGUF tensors made from the sources of ``source``. Raises: ModelError."""
        members = [numbered[number] for number in sorted(numbered)]
        alone = _NO_EXPERT in numbered
        if sorted(numbered) != ([_NO_EXPERT] if alone else list(range(len(members)))):
            lost = min(set(range(len(members))) - set(numbered), default=0)
            raise ModelError(
                f"{self.folder}: {source!r} is stacked from {len(members)} experts, but "
                f"expert {lost} is missing (found {shown(members[0][0])})"
            )
        first_name, first = members[0]
        concatenates, source = source.endswith("+"), source.removesuffix("+")
        for name, stored in members:
            if stored.shape[concatenates:] != first.shape[concatenates:]:
                raise ModelError(
                    f"{self.folder}: {shown(name)} has the shape {list(stored.shape)}, but "
                    f"{shown(first_name)} {list(first.shape)}"
                )
        shapes = self._try(first_name, source, first.shape)
        tensors = [stored for _, stored in members]
        whole = all(self._keeps_blocks(source, stored, shapes) for stored in tensors)
        of_blocks = [stored.blocks for stored in tensors if isinstance(stored, DecodedTensor)]
        packed = [blocks for blocks in of_blocks if blocks is not None and whole]
        scales = _scales(packed)
        if concatenates:
            n_rows = [stored.shape[0] for stored in tensors]
            return [
                ConvertedTensor(
                    name,
                    (sum(n_rows), *shape[1:]),
                    tuple(
                        partial(self._values, source, stored, name, (n, *shape[1:]))
                        for stored, n in zip(tensors, n_rows, strict=True)
                    ),
                    frozenset[str]().union(*(stored.dtypes for stored in tensors)),
                )
                for name, shape in shapes.items()
            ]
        return [
            ConvertedTensor(
                name,
                shape if alone else (len(members), *shape),
                tuple(partial(self._values, source, stored, name, shape) for stored in tensors),
                frozenset[str]().union(*(stored.dtypes for stored in tensors)),
                tuple(partial(self._blocks, source, stored, name) for stored in tensors if whole),
                packed[0].type if packed else GGMLType.MXFP4,
                scales,
            )
            for name, shape in shapes.items()
        ]

    def _try(self, theirs: str, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of a tensor's results; cached, since layers are alike."""
        key = _pattern(name), shape
        if key not in self.tried:
            try:
                zeros = np.broadcast_to(np.float32(0), shape)  # takes no memory
                results: Tensors = self.change(name, zeros, self.config)
            except (LookupError, TypeError, ValueError, ArithmeticError) as error:
                raise ModelError(
                    f"{self.folder}: tensor {shown(theirs)} of shape {list(shape)} cannot be "
                    f"converted to {name!r}: {error!s:.200}"
                ) from None
            self.tried[key] = {_pattern(ours): x.shape for ours, x in results.items()}
        layer = _LAYER.search(name)
        number = layer[1] if layer else ""
        return {ours.replace("{i}", number): s for ours, s in self.tried[key].items()}

    def _values(
        self, name: str, stored: CheckpointTensor, result: str, shape: tuple[int, ...]
    ) -> Array:
        x = self.change(name, stored.read(), self.config)[result]
        assert x.shape == shape, f"{result}: got {x.shape}, planned {shape}"
        return x

    def _keeps_blocks(
        self, name: str, stored: CheckpointTensor, shapes: Mapping[str, tuple[int, ...]]
    ) -> bool:
        """Return whether ``change`` only selects whole rows of blocks and reorders them.

        The results then are views, or copies, in which all blocks of a row still follow each other.
        """
        if not isinstance(stored, DecodedTensor) or stored.blocks is None:
            return False
        blocks = stored.blocks.unread()
        try:
            results: Tensors = self.change(name, blocks, self.config)
        except (LookupError, TypeError, ValueError, ArithmeticError):  # computes with values
            return False
        n_blocks = stored.blocks.shape[-1]
        fits = all(
            ours in results
            and results[ours].dtype == blocks.dtype
            and results[ours].strides[-1:] == (1,)
            and results[ours].shape == (*shape[:-1], n_blocks)
            and shape[-1] == n_blocks * stored.blocks.type.block_size
            for ours, shape in shapes.items()
        )
        if not fits or all(np.may_share_memory(results[ours], blocks) for ours in shapes):
            return fits
        results = self.change(name, stored.blocks.numbered(), self.config)
        places = np.arange(n_blocks, dtype=np.uint8)
        return all((results[ours].view(np.uint8) == places).all() for ours in shapes)

    def _blocks(self, name: str, stored: CheckpointTensor, result: str) -> Blocks:
        assert isinstance(stored, DecodedTensor) and stored.blocks is not None
        return self.change(name, stored.blocks.read(), self.config)[result]
