"""Modules: releases that never change, aliases that flip, and the tree that users see."""
