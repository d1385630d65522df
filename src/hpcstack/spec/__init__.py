"""Recipes: what a stack is made of."""

from hpcstack.spec.model import Stack

__all__ = ["Stack"]
