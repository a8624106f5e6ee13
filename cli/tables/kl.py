"""The output of ``pyllama-perplexity --kl-divergence``, in llama-perplexity's format.

write(HEADER)
write(chunk_line(result))                          # after each chunk
write(statistics(result))                          # at the end
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyllama.eval.kl_divergence import Divergence, Estimate

HEADER = (
    "\nchunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
    "              Δp RMS            Same top p\n"
)
MIN_TOKENS = 100  # no statistics are printed for fewer
_KLD = (0.999, 0.99, 0.95, 0.9, None, 0.1, 0.05, 0.01, 0.001)  # None: the median
_P_DIFF = (0.999, 0.99, 0.95, 0.9, 0.75, None, 0.25, 0.1, 0.05, 0.01, 0.001)


def _pair(estimate: Estimate, form: str, error_form: str = "", scale: float = 1) -> str:
    value, error = scale * estimate.value, scale * estimate.error
    return f"{value:{form}} ± {error:{error_form or form}}"


def chunk_line(result: Divergence) -> str:
    """Return the line of running values after a chunk."""
    return (
        f"{result.chunk:4d}    {_pair(result.ppl, '9.4f')}    {_pair(result.log_ratio, '10.5f')}"
        f"    {_pair(result.mean_kld, '10.5f')}    {_pair(result.rms_p_diff, '6.3f', scale=100)} %"
        f"    {_pair(result.top_agreement, '6.3f', scale=100)} %\n"
    )


def statistics(result: Divergence) -> str:
    """Return the final statistics; an empty string for fewer than MIN_TOKENS tokens."""
    if len(result.kld) < MIN_TOKENS:
        return ""
    lines = ["", "====== Perplexity statistics ======"]
    lines += [
        f"Mean PPL(Q)                   : {_pair(result.ppl, '10.6f')}",
        f"Mean PPL(base)                : {_pair(result.ppl_base, '10.6f')}",
        f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * result.correlation:6.2f}%",
        f"Mean ln(PPL(Q)/PPL(base))     : {_pair(result.log_ratio, '10.6f')}",
        f"Mean PPL(Q)/PPL(base)         : {_pair(result.ratio, '10.6f')}",
        f"Mean PPL(Q)-PPL(base)         : {_pair(result.difference, '10.6f')}",
        "",
        "====== KL divergence statistics ======",
        f"Mean    KLD: {_pair(result.mean_kld, '10.6f')}",
    ]
    lines += _spread(result.kld, "KLD: ", _KLD, "10.6f", "")
    lines += ["", "====== Token probability statistics ======"]
    lines += [f"Mean    Δp: {_pair(result.mean_p_diff, '6.3f', '5.3f', 100)} %"]
    lines += _spread(100 * result.p_diff, "Δp: ", _P_DIFF, "6.3f", "%")
    lines += [
        f"RMS Δp    : {_pair(result.rms_p_diff, '6.3f', '5.3f', 100)} %",
        f"Same top p: {_pair(result.top_agreement, '6.3f', '5.3f', 100)} %",
    ]
    return "\n".join(lines) + "\n"


def _spread(
    values: npt.NDArray[np.float64],
    what: str,
    fractions: tuple[float | None, ...],
    form: str,
    unit: str,
) -> list[str]:
    """Return lines with the maximum, percentiles in descending order, and the minimum."""
    from pyllama.eval.kl_divergence import percentile

    lines = [f"Maximum {what}{values.max():{form}}{unit}"]
    for fraction in fractions:
        name = "Median  " if fraction is None else f"{100 * fraction:4.1f}%   "
        lines.append(f"{name}{what}{percentile(values, fraction or 0.5):{form}}{unit}")
    return [*lines, f"Minimum {what}{values.min():{form}}{unit}"]
