"""``/graph.json`` and ``/graph.html``: the model's graph for the page ``/graph``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...page.graph_page import GraphQuery, draw_graph, graph_drawing, graph_json
from ...request.errors import ApiError
from ...worker.served import GraphTexts, ServedModel
from ...worker.threads import LANE, LARGE


async def data(request: Request, served: ServedModel) -> Response:
    """``GET /graph.json``: nodes and times; ``times=1`` measures again."""
    drawn = await _drawn(request, served, measures=True)
    return Response(drawn.data, media_type="application/json")


async def drawing(request: Request, served: ServedModel) -> Response:
    """``GET /graph.html``: the drawing of the run that ``/graph.json`` has measured."""
    drawn = await _drawn(request, served, measures=False)
    return Response(drawn.drawing, media_type="text/html")


async def _drawn(request: Request, served: ServedModel, *, measures: bool) -> GraphTexts:
    """Draw the graph of a query, or return the last drawing if its query was the same.

    Args:
        measures: whether ``times=1`` draws again.

    Raises:
        ApiError: the query is wrong.
    """
    try:
        query = GraphQuery.read(request.query_params)
    except ValueError as error:
        raise ApiError.invalid(str(error)) from None

    def draw() -> GraphTexts:
        drawn = draw_graph(served.engine.context, query)
        return GraphTexts(query, graph_json(drawn, query), graph_drawing(drawn))

    last = served.graph
    if last is not None and last.query == query and not (measures and query.times):
        return last
    LANE.set(LARGE)
    async with served.drawing:
        served.graph = drawn = await served.prepare(draw)
    return drawn
