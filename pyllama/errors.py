"""The tree of errors that pyllama adds to pyggml's.

    PyllamaError             (PyggmlError)
    ├── ModelError           (ValueError)   a legal GGUF file, but not a supported model
    ├── TokenizerError       (ValueError)   an unusable vocabulary, or text it cannot encode
    ├── ContextFull          (ValueError)   more tokens than the context has cells
    ├── BatchError           (ValueError)   a batch with illegal ids, positions or sequences
    ├── StateError           (ValueError)   a saved state that is damaged or does not match
    │   └── StateFull        (ValueError)   a saved state with more tokens than there are free cells
    ├── TemplateError        (ValueError)   a chat template failed or exceeded its limits
    ├── HubError             (ValueError)   a model could not be fetched from the model hub
    ├── SamplingError        (ValueError)   illegal sampling parameters, logits or tokens
    ├── DraftError           (ValueError)   an illegal draft, or a damaged lookup cache
    ├── GrammarError         (ValueError)   a grammar with a syntax error, or over its limits
    │   └── SchemaError      (ValueError)   a JSON schema that is invalid or not supported
    ├── PerplexityError      (ValueError)   a text that is too short, or logits that are not finite
    ├── SavedLogitsError     (ValueError)   a file of logits that is damaged or does not match
    ├── BenchFileError       (ValueError)   a results file without comparable benchmark rows
    ├── ClusterError         (ValueError)   illegal options of a cluster, or an engine that ended
    ├── BatchFileError       (ValueError)   inputs or finished parts of a batch that do not fit
    ├── QueueFull            (RuntimeError) the maximum number of waiting requests is reached
    ├── EngineDead           (RuntimeError) an engine that can evaluate no request any more
    ├── ReentrantCall        (RuntimeError) a callback called the object that is calling it
    ├── Forked               (RuntimeError) the process was forked while another thread computed
    └── NotSupported         (ValueError, NotImplementedError)   only llama-cpp-python has it

A message names the object, the value found, the values allowed, and the next step.
"""

from pyggml.errors import PyggmlError


class PyllamaError(PyggmlError):
    """Base of all errors that pyllama raises on purpose."""


class ModelError(PyllamaError, ValueError):
    """A legal GGUF file that is not a supported model."""


class TokenizerError(PyllamaError, ValueError):
    """A vocabulary that cannot be used, or text that it cannot encode."""


class ContextFull(PyllamaError, ValueError):
    """More tokens than the context has cells."""


class BatchError(PyllamaError, ValueError):
    """A batch with bad token ids, positions or sequences."""


class StateError(PyllamaError, ValueError):
    """A saved state that is damaged, too large, or of another model."""


class StateFull(StateError):
    """A saved state that has more tokens than there are free cells."""


class TemplateError(PyllamaError, ValueError):
    """A chat template that is invalid, rejects the messages, or exceeds its limits."""


class HubError(PyllamaError, ValueError):
    """A failed download from the model hub: no such file, no access, no network."""


class BenchFileError(PyllamaError, ValueError):
    """A file of benchmark results that cannot be read, or has no comparable rows."""


class ClusterError(PyllamaError, ValueError):
    """Illegal options of a cluster, Ray is missing, or an engine has ended."""


class BatchFileError(PyllamaError, ValueError):
    """A file of inputs that cannot be read, or finished parts that belong to other options."""


class NotSupported(PyllamaError, NotImplementedError, ValueError):
    """A feature of llama-cpp-python that pyllama does not have yet."""


class QueueFull(PyllamaError, RuntimeError):
    """The maximum number of waiting requests is reached."""


class EngineDead(PyllamaError, RuntimeError):
    """An engine that can evaluate no request any more; the process should be started again."""


class ReentrantCall(PyllamaError, RuntimeError):
    """A callback called the object that is calling it."""


class SavedLogitsError(PyllamaError, ValueError):
    """A file is not a file of logits, is truncated, or is of another model."""


class PerplexityError(PyllamaError, ValueError):
    """The text is shorter than two chunks, or logits are not finite."""


class Forked(PyllamaError, RuntimeError):
    """The process was forked while another thread was using the object."""


class SamplingError(PyllamaError, ValueError):
    """Illegal sampling parameters, logits or tokens."""


class DraftError(PyllamaError, ValueError):
    """A draft that breaks the rules of verification, or a damaged file of a lookup cache."""


class GrammarError(PyllamaError, ValueError):
    """A grammar with a syntax error (line and column), left recursion, or over its limits."""


class TextComplete(GrammarError):
    """The text is a whole one of the grammar, and the vocabulary has no token that ends it."""


class SchemaError(GrammarError):
    """A JSON schema that is invalid, or has a keyword that a grammar cannot express."""
