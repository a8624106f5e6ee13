"""``--sparse`` and ``--sparse-threshold``: which neurons of a ReLU model are computed.

    --sparse predictor,exact:0-3 --sparse-threshold 0.25

``pyllama.graph.sparse.sources`` defines the syntax. It is checked here, before the model is opened.
"""

from __future__ import annotations

import math

import click

from pyllama.parameters.loading import FileParams

from ..flags import in_flags
from ..parameters import Parsed, parameter_options


def _threshold(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise click.BadParameter(f"{text!r} is not a number, inf or -inf.")
    return number


THRESHOLD = Parsed("X", _threshold)


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
    types={"--sparse-threshold": THRESHOLD},
    section="Sparse inference",
)
"""``--sparse`` and ``--sparse-threshold``."""
