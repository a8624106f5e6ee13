"""``--sparse`` and ``--sparse-threshold``: which neurons of a ReLU model are computed.

    --sparse predictor,exact:0-3 --sparse-threshold 0.25

``pyllama.graph.sparse.sources`` defines the syntax. It is checked here, before the model is opened.
"""

from __future__ import annotations

import math
from typing import Any

import click

from ..flags import in_flags
from ..help_pages import stack


class Threshold(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number, or inf or -inf."""

    name = "X"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; NaN is refused."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number, inf or -inf.", param, ctx)
        return number


def _sources(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value != "auto":
        from pyllama.errors import ModelError
        from pyllama.graph.sparse.sources import parse_sparse

        try:
            parse_sparse(value)
        except ModelError as error:
            raise click.BadParameter(f"{in_flags(str(error))}.") from None
    return value


sparse_options = stack(
    click.option(
        "--sparse",
        default="auto",
        callback=_sources,
        metavar="SOURCE",
        help="How to select the active neurons of a ReLU model: predictor (PowerInfer's), exact "
        "(lossless), signs, svd or svd=RANK, off (compute all). auto: predictor or exact if the "
        "file supports it. Per layer: predictor,exact:0-3.",
    ),
    click.option(
        "--sparse-threshold",
        type=Threshold(),
        metavar="X",
        help="Minimum score of a neuron that is computed.  [default: the file's, or 0]",
    ),
    section="Sparse inference",
)
"""``--sparse`` and ``--sparse-threshold``."""
