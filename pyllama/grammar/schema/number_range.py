"""Integers and decimal numbers between two bounds, as GBNF text.

    integer_range(5, 30)                                  # '[5-9] | ([1-2] [0-9] | [3] "0")'
    number_range((Decimal("0.5"), False), None)

Integers have llama.cpp's text. With a bound, numbers have no exponent, and so few digits that no
two of them are the same double: a document that is read with doubles keeps its bounds.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

Bound = tuple[Decimal, bool]  # value, whether it is exclusive

MAX_DIGITS = 16  # of an integer without a bound
DOUBLE_DIGITS = 15  # numbers of so many decimal digits are different doubles
DECIMALS = '("." decimal-part)?'


def _digit(first: int, last: int) -> str:
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def _digits(low: int, high: int) -> str:
    if low == high == 1:
        return "[0-9]"
    return f"[0-9]{{{low}}}" if low == high else f"[0-9]{{{low},{high}}}"


def _same_length(low: str, high: str) -> str:
    """Numbers between two of the same number of digits."""
    common = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    prefix = f'"{low[:common]}"' if common else ""
    if common == len(low):
        return prefix
    first, last, n_rest = int(low[common]), int(high[common]), len(low) - common - 1
    if not n_rest:
        inner = f"[{first}-{last}]"
    else:
        options = []
        low_rest, high_rest = low[common + 1 :], high[common + 1 :]
        zeros, nines = "0" * n_rest, "9" * n_rest
        is_done = False
        if low_rest == zeros:
            options.append(f"{_digit(first, last - 1)} {_digits(n_rest, n_rest)}")
        else:
            options.append(f"[{first}] ({_same_length(low_rest, nines)})")
            if first < last - 1:
                is_done = high_rest == nines
                end = last if is_done else last - 1
                options.append(f"{_digit(first + 1, end)} {_digits(n_rest, n_rest)}")
        if not is_done:
            options.append(f"{_digit(last, last)} {_same_length(zeros, high_rest)}")
        inner = f"({' | '.join(options)})"
    return f"{prefix} {inner}" if prefix else inner


def _at_least(low: str, n_digits: int, start: int = 1) -> str:
    """Integers of at least ``low`` (>= 0) and at most ``n_digits`` digits.

    Args:
        start: minimum of the first digit. 1: no leading zeros. 0: the digits follow a prefix that
            equals the bound's, so there are at least ``len(low)`` of them, and zeros may lead.
    """
    fewer = max(n_digits - 1, 1)
    if not low.strip("0"):
        return f"[0] | [1-9] {_digits(0, fewer)}" if start else _digits(len(low), n_digits)
    first, n_rest = int(low[0]), len(low) - 1
    options = []
    if first > start:
        options.append(f"{_digit(start, first - 1)} {_digits(n_rest + 1, fewer)}")
    if not n_rest:
        options.append(f"{_digit(first, 9)} {_digits(0, fewer)}")
        return " | ".join(options)
    options.append(f"{_digit(first, first)} ({_at_least(low[1:], fewer, 0)})")
    if first < 9:
        options.append(f"{_digit(first + 1, 9)} {_digits(n_rest, fewer)}")
    return " | ".join(options)


def integer_range(low: int | None, high: int | None) -> str:
    """Return the integers between two bounds, one of which may be None, as GBNF alternatives."""
    assert low is not None or high is not None
    n_digits = max(MAX_DIGITS, 1 + max(len(str(abs(bound or 0))) for bound in (low, high)))
    if low is not None and high is not None:
        if high < 0:
            return f'"-" ({integer_range(-high, -low)})'
        if low < 0:
            return f'"-" ({integer_range(0, -low)}) | {integer_range(0, high)}'
        options, text = [], str(low)
        for n in range(len(text), len(str(high))):
            options.append(_same_length(text, "9" * n))
            text = "1" + "0" * n
        return " | ".join([*options, _same_length(text, str(high))])
    if low is not None:
        if low < 0:
            return f'"-" ({integer_range(0, -low)}) | [0] | [1-9] {_digits(0, n_digits - 1)}'
        return _at_least(str(low), n_digits)
    assert high is not None
    if high < 0:
        return f'"-" ({_at_least(str(-high), n_digits)})'
    return f'"-" [1-9] {_digits(0, n_digits - 1)} | {integer_range(0, high)}'


def number_range(low: Bound | None, high: Bound | None) -> str | None:
    """Return the decimal numbers between two bounds as GBNF alternatives; None: there are none."""
    low, high = _rounded(low, ROUND_CEILING), _rounded(high, ROUND_FLOOR)
    zero = Decimal(0)
    has_zero = low is None or low <= (zero, False)
    has_zero = has_zero and (high is None or (high[0], not high[1]) >= (zero, True))
    options = []
    if low is None or low[0] < 0:
        least = (-high[0], high[1]) if high is not None and high[0] < 0 else (zero, not has_zero)
        negative = _magnitudes(least, None if low is None else (-low[0], low[1]))
        if negative:
            options.append(f'"-" ({negative})')
    if high is None or high[0] >= 0:
        least = low if low is not None and low[0] >= 0 else (zero, not has_zero)
        options.append(_magnitudes(least, high) or "")
    return " | ".join(option for option in options if option) or None


def _rounded(bound: Bound | None, rounding: str) -> Bound | None:
    """A bound of few digits, rounded to the inside."""
    if bound is None:
        return None
    return Context(prec=DOUBLE_DIGITS, rounding=rounding).plus(bound[0]), bound[1]


def _split(value: Decimal) -> tuple[int, str]:
    """The integer part, and the digits of the fraction without zeros at the end."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _magnitudes(low: Bound, high: Bound | None) -> str:
    """Decimal numbers without sign between two bounds >= 0."""
    first, low_digits = _split(low[0])
    if high is None:
        n = max(DOUBLE_DIGITS - len(str(first)), 1)
        if not low_digits and not low[1]:
            return f"({integer_range(first, None)}) {DECIMALS}"
        options = [_with_fraction(first, _fraction(low_digits, None, low[1], False, n))]
        return " | ".join([*options, f"({integer_range(first + 1, None)}) {DECIMALS}"])
    last, high_digits = _split(high[0])
    if last < first:
        return ""
    n = max(DOUBLE_DIGITS - len(str(last)), 0)
    if first == last:
        n = max(n, len(low_digits), len(high_digits))
        return _with_fraction(first, _fraction(low_digits, high_digits, low[1], high[1], n))
    options = []
    if low_digits or low[1]:
        fraction = _fraction(low_digits, None, low[1], False, max(n, len(low_digits)))
        options.append(_with_fraction(first, fraction))
        first += 1
    if first < last:
        some = f' ("." [0-9]{{1,{n}}})?' if n else ""
        options.append(f"({integer_range(first, last - 1)}){some}")
    fraction = _fraction("", high_digits, False, high[1], max(n, len(high_digits)))
    options.append(_with_fraction(last, fraction))
    return " | ".join(option for option in options if option)


def _with_fraction(whole: int, fraction: str | None) -> str:
    return "" if fraction is None else f'"{whole}" {fraction}'.rstrip()


def _fraction(low: str, high: str | None, low_open: bool, high_open: bool, n: int) -> str | None:
    """An optional fraction between two; None: there is none that fits."""
    with_none = (not low and not low_open) and not (high == "" and high_open)
    digits = _fraction_digits(low if low or low_open else None, high, low_open, high_open, n, True)
    if digits is None:
        return "" if with_none else None
    return f'("." {digits})?' if with_none else f'"." {digits}'


def _fraction_digits(
    low: str | None, high: str | None, low_open: bool, high_open: bool, n: int, needs_one: bool
) -> str | None:
    """The digits after those that equal the bounds' so far, at most ``n``.

    Args:
        low: the rest of the lower bound; None: already above it.
        high: the rest of the upper bound; None: already below it.
        needs_one: no digit was written yet.
    """
    if low == "" and not low_open:
        low = None
    if n == 0:
        return None if needs_one or low is not None or (high == "" and high_open) else '""'
    if high == "":  # equal to the upper bound: zeros only
        return None if high_open or low is not None else f'"0"{{{int(needs_one)},{n}}}'
    if low is None and high is None:
        return f"[0-9]{{{int(needs_one)},{n}}}"
    if low == "" and high is None:
        zeros = f'"0"{{0,{n - 1}}} ' if n > 1 else ""
        more = f" [0-9]{{0,{n - 1}}}" if n > 1 else ""
        return f"{zeros}[1-9]{more}"
    options: list[str] = []
    least = int(low[:1] or "0") if low is not None else 0
    most = int(high[0]) if high is not None else 9
    digit = least
    while digit <= most:
        low_rest = low[1:] if low is not None and digit == least else None
        high_rest = high[1:] if high is not None and digit == most else None
        last = digit
        if low_rest is None and high_rest is None:
            last = most - (high is not None)
        rest = _fraction_digits(low_rest, high_rest, low_open, high_open, n - 1, False)
        if rest is not None:
            options.append(f"{_digit(digit, last)} {rest}".removesuffix(' ""'))
        digit = last + 1
    if not options:
        return None
    text = f"({' | '.join(options)})"
    return f"{text}?" if low is None and not needs_one else text
