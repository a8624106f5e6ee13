"""Every error that pyllama raises on top of pyggml's, in one tree.

    PyllamaError             (PyggmlError)
    ├── ModelError           (ValueError)   a GGUF file that is legal but not a model we can run
    ├── TokenizerError       (ValueError)   a vocabulary we cannot use, or text it cannot encode
    ├── ContextFull          (ValueError)   more tokens than the context has cells
    ├── BatchError           (ValueError)   a batch with bad ids, positions or sequences
    ├── StateError           (ValueError)   a saved state that is damaged or of something else
    ├── TemplateError        (ValueError)   a chat template that is wrong, refuses, or does not end
    ├── HubError             (ValueError)   a model that cannot be had from the model hub
    ├── BenchFileError       (ValueError)   a file that has no benchmark rows to compare
    └── NotSupported         (ValueError, NotImplementedError)   llama-cpp-python has it, we do not

A message says what, where, got and wanted with numbers, and the next step.
"""

from pyggml.errors import PyggmlError


class PyllamaError(PyggmlError):
    """Base of all errors that pyllama raises on purpose."""


class ModelError(PyllamaError, ValueError):
    """A GGUF file that is legal but not a model that can be run."""


class TokenizerError(PyllamaError, ValueError):
    """A vocabulary that cannot be used, or text that it cannot encode."""


class ContextFull(PyllamaError, ValueError):
    """More tokens than the context has cells."""


class BatchError(PyllamaError, ValueError):
    """A batch with bad token ids, positions or sequences."""


class StateError(PyllamaError, ValueError):
    """A saved state that is damaged, of another model, or too large."""


class TemplateError(PyllamaError, ValueError):
    """A chat template that is wrong, refuses the messages, or exceeds its limits."""


class HubError(PyllamaError, ValueError):
    """A model that cannot be had from the model hub: no such file, no access, no network."""


class BenchFileError(PyllamaError, ValueError):
    """A file of benchmark results that cannot be read, or has no rows that can be compared."""


class NotSupported(PyllamaError, NotImplementedError, ValueError):
    """Something that llama-cpp-python can do and pyllama cannot yet."""
