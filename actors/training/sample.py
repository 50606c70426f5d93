"""`Sample`: one response to train on. Pure, without torch.

`samples` makes tensors from samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to train on.

    `logprobs`: of each response token, under the policy that made it and the temperature that it was sampled
    with. `advantage`: of the response, the same for each of its tokens. Raises `ValueError` if the lengths
    disagree or there is nothing to train on.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    logprobs: Sequence[float]
    advantage: float

    def __post_init__(self) -> None:
        if not self.prompt or not self.response or len(self.response) != len(self.logprobs):
            raise ValueError(
                f"a sample needs a prompt, a response and a log-prob for each token of it, got "
                f"{len(self.prompt)}, {len(self.response)} and {len(self.logprobs)}"
            )

    def __len__(self) -> int:
        """Tokens that the model reads: prompt and response."""
        return len(self.prompt) + len(self.response)
