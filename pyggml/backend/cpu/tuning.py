"""Values that depend on a CPU's memory system: prefetches, chunks, waiting; measured on the host.

    tuning().one_bytes                             # in a lowering: the value in use here
    with using(Tuning(one_hint=0)): ...            # programs lowered inside keep it
    PYGGML_TUNING=one_hint=3,one_bytes=2048        # set by hand

The self-test measures a CPU when it is first seen (``measure``) and keeps the values with the
compiled code. Without a measurement the defaults are used, which are good on all CPUs that we know.
No value changes the bits of a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ... import env, host
from ...compiler import jit
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

    one_hint: int = _tuned(2, 0, 3, "prefetch hint of quantized weights, one token")
    one_bytes: int = _tuned(4096, 0, 1 << 16, "how far ahead, in bytes")
    few_hint: int = _tuned(3, 0, 3, "prefetch hint of quantized weights, a few tokens")
    few_bytes: int = _tuned(8192, 0, 1 << 16, "how far ahead, in bytes")
    float_hint: int = _tuned(2, 0, 3, "prefetch hint of float weights, one token")
    float_bytes: int = _tuned(4096, 0, 1 << 16, "how far ahead, in bytes")
    kv_hint: int = _tuned(2, 0, 3, "prefetch hint of keys and values, one token")
    kv_keys: int = _tuned(32, 0, 64, "how far ahead, in keys")
    axpy_hint: int = _tuned(2, 0, 3, "prefetch hint of the rows that AXPY adds")
    chunk_bytes: int = _tuned(1 << 17, 1, 1 << 30, "weights of a thread's chunk, one token")
    amx_tokens: int = _tuned(16, 1, 1 << 20, "tokens from which AMX multiplies, blocks of 32")
    amx_tokens_256: int = _tuned(16, 1, 1 << 20, "the same, blocks of 256 columns")
    spins: int = _tuned(10_000, 0, 1 << 30, "pauses of an idle thread before it yields")
    look: int = _tuned(8, 1, 1 << 20, "pauses between looks at other threads' chunks")


DEFAULT = Tuning()
WHAT: Mapping[str, str] = {f.name: f.metadata["what"] for f in fields(Tuning)}


@dataclass(frozen=True)
class Choice:
    """One value that was measured.

    Attributes:
        name: the field of ``Tuning``.
        value: the value chosen.
        rates: GB/s of the values tried, each value's best run.
        gain: speed of the fastest other value over the default's, in alternating runs.
    """

    name: str
    value: int
    rates: Mapping[int, float]
    gain: float


@dataclass(frozen=True)
class Record:
    """The measurements of a CPU, or the reason why there are none."""

    cpu: str
    seconds: float = 0.0
    choices: tuple[Choice, ...] = ()
    pause_ns: float = 0.0
    problem: str = ""

    def tuning(self) -> Tuning:
        """The values chosen; defaults for the rest."""
        chosen = {choice.name: choice.value for choice in self.choices}
        if self.pause_ns > 0:
            chosen |= waiting(self.pause_ns)
        return replace(DEFAULT, **{name: _checked(name, chosen[name]) for name in chosen})

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """A record from its text. Raises: ValueError: the text is no record."""
        try:
            data = json.loads(text)
            choices = tuple(_choice_from(c) for c in data["choices"])
            pause_ns = float(data["pause_ns"])
            if pause_ns and not 0.1 <= pause_ns <= 1e6:
                raise ValueError(f"a pause of {pause_ns} ns")
            record = cls(
                str(data["cpu"]), float(data["seconds"]), choices, pause_ns, str(data["problem"])
            )
            record.tuning()
        except (KeyError, TypeError, AttributeError, ValueError, PyggmlError) as e:
            raise ValueError(f"not a record of measurements: {e}") from None
        return record


def _choice_from(data: Mapping[str, Any]) -> Choice:
    rates = {int(value): float(rate) for value, rate in data["rates"].items()}
    return Choice(str(data["name"]), int(data["value"]), rates, float(data["gain"]))


_SPIN_NS = 250_000.0  # longer than Python takes between two tokens
_LOOK_NS = 200.0


def waiting(pause_ns: float) -> dict[str, int]:
    """The numbers of pauses, from a pause's duration (4 to 60 ns on known CPUs)."""
    return {"spins": round(_SPIN_NS / pause_ns), "look": max(1, round(_LOOK_NS / pause_ns))}


def _checked(name: str, value: int) -> int:
    known = {f.name: f.metadata for f in fields(Tuning)}
    if name not in known:
        raise PyggmlError(f"{env.TUNING.name}: unknown name {name!r}; known: {', '.join(known)}")
    limits = known[name]
    if not limits["least"] <= value <= limits["most"]:
        raise PyggmlError(
            f"{env.TUNING.name}: {name}={value}, wanted {limits['least']} to {limits['most']}"
        )
    return value


def by_hand() -> tuple[dict[str, int], bool]:
    """The values of ``PYGGML_TUNING``, and whether measured values are used for the rest.

    Raises:
        PyggmlError: a name is unknown, or a value no number or out of its range.
    """
    given: dict[str, int] = {}
    measured = True
    for part in (env.TUNING.get() or "").split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if name == "default" and not equals:
            measured = False
        elif name or equals:
            if not value.isdigit():
                raise PyggmlError(
                    f"{env.TUNING.name}: {part.strip()!r}, wanted NAME=NUMBER or 'default', apart "
                    "by commas, as one_hint=2,one_bytes=4096"
                )
            given[name] = _checked(name, int(value))
    return given, measured


_current: Tuning | None = None


def tuning() -> Tuning:
    """The values in use: set by hand, else measured, else the defaults. Raises: PyggmlError."""
    global _current
    if _current is None:
        given, measured = by_hand()
        record = load() if measured else None
        _current = replace(record.tuning() if record else DEFAULT, **given)
    return _current


@contextlib.contextmanager
def using(values: Tuning | None) -> Iterator[None]:
    """Lower programs with these values; None reads the measurement again."""
    global _current
    before, _current = _current, values
    try:
        yield
    finally:
        _current = before


def forget() -> None:
    """Read the measurement again at the next lowering."""
    global _current
    _current = None


def _entry() -> str:
    """The entry in the code cache that has the record of this CPU, set and number of threads."""
    races = jit.closure_digest(jit.isa(), "pyggml.backend.cpu.measure")
    key = cpu_key(), jit.isa(), host.default_threads(), races
    return f"tuning-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.json"


def cpu_key() -> str:
    """The CPU and its caches, as one line."""
    caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in host.cache_sizes().items())
    return "; ".join(part for part in (host.cpu_identity(), caches) if part)


def load() -> Record | None:
    """The record of this CPU, or None."""
    data = jit.code_cache(jit.isa()).read(_entry())
    try:
        return None if data is None else Record.from_json(data.decode())
    except ValueError:
        return None


def save(record: Record) -> None:
    """Store a record; it is used in this process even if it cannot be stored."""
    global _current
    jit.code_cache(jit.isa()).write(_entry(), record.to_json().encode())
    given, measured = by_hand()
    _current = replace(record.tuning() if measured else DEFAULT, **given)


def report() -> str:
    """A text with the values in use and the reason for each."""
    given, measured = by_hand()
    record = load() if measured else None
    if record is None:
        why = "the defaults, not measured yet" if measured else f"the defaults ({env.TUNING.name})"
    elif record.problem:
        why = f"the defaults, since measuring failed: {record.problem}"
    else:
        why = f"measured in {record.seconds:.2f} s"
    how = f"{env.TUNING.name} sets values, pyllama info --tune measures again"
    lines = [f"tuning           {why}; {how}"]
    choices = {choice.name: choice for choice in record.choices} if record else {}
    for name, value in asdict(tuning()).items():
        reason = ""
        if name in given:
            reason = f"set by {env.TUNING.name}"
        elif name in choices:
            reason = _measured(choices[name])
        elif record and record.pause_ns and name in waiting(record.pause_ns):
            reason = f"a pause takes {record.pause_ns:.1f} ns"
        lines.append(f"  {name:13s}  {value:<7d} {WHAT[name]}")
        if reason:
            lines.append(f"{'':25s}{reason}")
    return "\n".join(lines) + "\n"


def _measured(choice: Choice) -> str:
    """The measurement of one value."""
    rates = ", ".join(f"{value}: {rate:.1f}" for value, rate in choice.rates.items())
    return f"GB/s {rates}; best other {choice.gain:.2f} x the default"
