"""Effect of new weights on users: pause, version lag, and time of a late host.

Measures the pause of the token stream, the version lag, and the time of a late host to its first token.
`python -m bench.weights.pause` measures them, `page` writes the section.
"""
