"""ModelCheck: which engines serve the gateway's model, and which are refused.

A response that starts on one engine may continue on any other, so all of them must serve one model. Pure.
"""

from dataclasses import replace

from gleaner.actors.engine.servers.foreign_facts import EngineFacts, differences
from gleaner.actors.gateway.recent_names import RecentNames

MAX_REFUSED = 1024
MAX_FOLDERS = 256


class ModelCheck:
    """See the module.

    Args:
        expected: of the first engine, which decides what this gateway serves.
    """

    def __init__(self, expected: EngineFacts) -> None:
        self.expected = expected
        self._refused: dict[str, str] = {}
        self._folders = RecentNames(MAX_FOLDERS)

    @property
    def refused(self) -> dict[str, str]:
        """The reasons by the URL of the engine; the newest last."""
        return dict(self._refused)

    def look(self, url: str, facts: EngineFacts, kind: str = "") -> str:
        """Why the engine at this URL is refused, "": it is not. kind: the protocol in which it is driven, ""
        before it is. On repeated checks the newest verdict counts."""
        if facts.root in self._folders:  # older SGLang servers report the folder of the newest weights there
            facts = replace(facts, root=self.expected.root)
        faults = differences(self.expected, facts)
        if kind and kind != facts.kind:
            faults.append(
                f"it speaks the {facts.kind} protocol now, it was added as {kind}: remove it and add it"
            )
        why = "; ".join(faults)
        self._refused.pop(url, None)
        if why:
            self._refused[url] = why
            while len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
        return why

    def forget(self, url: str) -> bool:
        """Remove the refusal of this engine; returns whether there was one."""
        return self._refused.pop(url, None) is not None

    def given(self, folder: str) -> None:
        """Engines load their weights from this folder: it is of the model, whatever its name."""
        self._folders.add(folder)
