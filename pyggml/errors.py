"""Every error that pyggml raises, in one tree.

    PyggmlError
    ├── ShapeError       (ValueError)    sizes or strides that an op or a view cannot take
    ├── TypeMismatch     (TypeError)     a tensor type that an op cannot take
    ├── UnsupportedOp    (ValueError)    a backend has no kernel for a node
    ├── QuantizeError    (ValueError)    values that a block format cannot hold
    ├── BackendError     (ValueError)    a backend that is not there or does not start
    ├── AllocError       (MemoryError)   no room: arena, buffer or plan
    ├── GGUFError        (ValueError)    a file that is not a legal GGUF file
    ├── ComputeError     (RuntimeError)  a graph stopped with an error code
    └── Aborted                          a graph was stopped by abort() or Ctrl-C

A message says what, which tensor, got and wanted with numbers, and the next step. It may quote what
a file says: what a terminal would obey is escaped.
"""

from .visible import visible


class PyggmlError(Exception):
    """Base of all errors that pyggml raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__(), keep="\n\t")


class ShapeError(PyggmlError, ValueError):
    """Sizes or strides that an op, a view or an assignment cannot take."""


class TypeMismatch(PyggmlError, TypeError):
    """A tensor type that an op or an assignment cannot take."""


class UnsupportedOp(PyggmlError, ValueError):
    """A backend has no kernel for a node of the graph."""


class QuantizeError(PyggmlError, ValueError):
    """Values that a block format cannot hold: NaN, infinity, or a scale beyond float16."""


class BackendError(PyggmlError, ValueError):
    """A backend that does not exist or does not start on this machine."""


class AllocError(PyggmlError, MemoryError):
    """An arena, buffer or memory plan has no room."""


class GGUFError(PyggmlError, ValueError):
    """A file that is not a legal GGUF file."""


class ComputeError(PyggmlError, RuntimeError):
    """A graph compute ended with an error code."""


class Aborted(PyggmlError):
    """A graph compute was stopped by ``abort()`` or by Ctrl-C."""
