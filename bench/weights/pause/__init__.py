"""What users feel of new weights: the pause of the token stream, the version lag, and how long a host that
joins late takes to its first token. `python -m bench.weights.pause` measures it, `page` writes it down.
"""
