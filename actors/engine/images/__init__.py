"""Images of weights as engines read them."""
