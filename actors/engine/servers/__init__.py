"""Engines that are servers of their own: SGLang and vLLM."""
