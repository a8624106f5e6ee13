"""Values that depend on a CPU's memory system: prefetches, chunks, waiting; with good defaults.

    tuning().one_bytes                             # in a lowering: the value in use here
    with using(Tuning(one_hint=0)): ...            # programs lowered inside keep it
    PYGGML_TUNING=one_hint=3,one_bytes=2048        # set by hand

The defaults are good on all CPUs that were tried: on none does another value gain more than a
tenth (``docs/decisions/0020``). No value changes the bits of a result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ... import env
from ...errors import PyggmlError


def _tuned(default: int, least: int, most: int, what: str) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "what": what})


@dataclass(frozen=True)
class Tuning:
    """The tuned values; ``docs/decisions/0020`` says which others were tried.

    A hint is LLVM's locality of a prefetch (3 all caches, 2 the second level and below, 1 the
    third, 0 non-temporal): an immediate, so kernels are compiled for it. The rest are run-time
    values.
    """

    one_hint: int = _tuned(3, 0, 3, "prefetch hint of quantized weights, one token")
    one_bytes: int = _tuned(4096, 0, 1 << 16, "how far ahead, in bytes")
    few_hint: int = _tuned(3, 0, 3, "prefetch hint of quantized weights, a few tokens")
    few_bytes: int = _tuned(8192, 0, 1 << 16, "how far ahead, in bytes")
    float_hint: int = _tuned(2, 0, 3, "prefetch hint of float weights, one token")
    float_bytes: int = _tuned(8192, 0, 1 << 16, "how far ahead, in bytes")
    kv_hint: int = _tuned(2, 0, 3, "prefetch hint of keys and values, one token")
    axpy_hint: int = _tuned(2, 0, 3, "prefetch hint of the rows that AXPY adds")
    chunk_bytes: int = _tuned(1 << 17, 1, 1 << 30, "weights of a thread's chunk, one token")
    amx_tokens: int = _tuned(16, 1, 1 << 20, "tokens from which AMX multiplies, blocks of 32")
    amx_tokens_256: int = _tuned(16, 1, 1 << 20, "the same, blocks of 256 columns")
    spins: int = _tuned(10_000, 0, 1 << 30, "pauses of an idle thread before it yields")
    look: int = _tuned(8, 1, 1 << 20, "pauses between looks at other threads' chunks")


DEFAULT = Tuning()
WHAT: Mapping[str, str] = {f.name: f.metadata["what"] for f in fields(Tuning)}


def _checked(name: str, value: int) -> int:
    metadata = {f.name: f.metadata for f in fields(Tuning)}
    if name not in metadata:
        raise PyggmlError(f"{env.TUNING.name}: unknown name {name!r}; known: {', '.join(metadata)}")
    limits = metadata[name]
    if not limits["least"] <= value <= limits["most"]:
        raise PyggmlError(
            f"{env.TUNING.name}: {name}={value}, wanted {limits['least']} to {limits['most']}"
        )
    return value


def _by_hand() -> dict[str, int]:
    """The values of ``PYGGML_TUNING``. Raises: PyggmlError."""
    values: dict[str, int] = {}
    for part in (env.TUNING.get() or "").split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if name or equals:
            if not value.isdigit():
                raise PyggmlError(
                    f"{env.TUNING.name}: {part.strip()!r}, wanted NAME=NUMBER, apart by commas, as "
                    "one_hint=2,one_bytes=4096"
                )
            values[name] = _checked(name, int(value))
    return values


_current: Tuning | None = None


def tuning() -> Tuning:
    """The values in use: set by hand, else the defaults.

    Raises:
        PyggmlError: ``PYGGML_TUNING`` has an unknown name, or a value that is no number or out of
            its range.
    """
    global _current
    if _current is None:
        _current = replace(DEFAULT, **_by_hand())
    return _current


@contextlib.contextmanager
def using(values: Tuning | None) -> Iterator[None]:
    """Lower programs with these values; None reads ``PYGGML_TUNING`` again."""
    global _current
    before, _current = _current, values
    try:
        yield
    finally:
        _current = before


def report() -> str:
    """A text with the values in use."""
    by_hand = _by_hand()
    lines = [f"tuning           the defaults; {env.TUNING.name} sets values"]
    for name, value in asdict(tuning()).items():
        why = f" (set by {env.TUNING.name})" if name in by_hand else ""
        lines.append(f"  {name:13s}  {value:<7d} {WHAT[name]}{why}")
    return "\n".join(lines) + "\n"
