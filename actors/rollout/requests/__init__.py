"""Single requests, as the gateway and clients send them."""
