"""Allocators: tensors one by one (``tallocr``), or a whole graph by a plan (``gallocr``)."""

from .gallocr import Block, GraphAllocator, Plan
from .tallocr import TensorAllocator, alloc_ctx_tensors

__all__ = ["Block", "GraphAllocator", "Plan", "TensorAllocator", "alloc_ctx_tensors"]
