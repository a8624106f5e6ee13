"""The module ``llama_cpp.llama_types``: the dictionaries of OpenAI's interface."""

from ...llama.types import *  # noqa: F403
from ...llama.types import __all__ as __all__
