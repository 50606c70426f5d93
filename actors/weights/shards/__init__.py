"""Tensors in parts: which rank has which rows, and how parts become one image."""
