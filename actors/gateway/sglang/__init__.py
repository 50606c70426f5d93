"""SGLang's `/generate`."""
