"""``--sparse`` and ``--sparse-threshold``: which neurons of a ReLU model are computed.

    --sparse predictor,exact:0-3 --sparse-threshold 0.25

``pyllama.graph.sparse.sources`` defines the syntax. It is checked here, before the model is opened.
"""

from __future__ import annotations

import math
from typing import Any

import click

from pyllama.parameters.loading import FileParams

from ..flags import in_flags
from ..parameters import parameter_options


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


sparse_options = parameter_options(
    FileParams,
    only=("sparse", "sparse_threshold"),
    callbacks={"--sparse": _sources},
    types={"--sparse-threshold": Threshold()},
    section="Sparse inference",
)
"""``--sparse`` and ``--sparse-threshold``."""
