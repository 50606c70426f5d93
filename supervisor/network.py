"""Data sockets of this process."""


class Network:
    def __init__(self, host: str, keys: object, context: object = None) -> None:
        self.host = host
