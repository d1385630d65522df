"""Recipes: what a stack is made of."""
