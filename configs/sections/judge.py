"""Settings of a judge: a language model that scores responses."""

from typing import Annotated, Literal

from msgspec import Meta

from gleaner.configs.sections.values import URL, VARIABLE, HostPath, Natural, NotNegative, Positive, Section

ADDRESS = r"^(\[[0-9a-f:]+\]|[0-9.]+):[1-9][0-9]{0,4}\Z"
"""An address with a port."""
COLOCATED_MODEL = "judge"
"""Name of a judge's model that the job serves by itself, if none is set."""


class Colocated(Section, frozen=True, kw_only=True):
    """A judge that the job serves by itself, with the builtin engine, in a process `judge` beside the engine
    of the reserved host (`reward.judge.place = "colocated"`)."""

    model_path: HostPath = ""
    """Folder of the judge's model on the reserved host, in Hugging Face's form (Qwen3)."""
    reserve_mb: Natural = 0
    """Memory of its device for weights, cache and activations, in MB of 2^20 bytes. Layers that do not fit
    stay in host memory and are streamed, the more the longer the input."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it computes, in float32."""
    listen: Annotated[str, Meta(pattern=ADDRESS)] = "127.0.0.1:8901"
    """HOST:PORT where it serves and reward workers call it. Beyond loopback it needs `reward.judge.key_env`,
    on the reserved host too."""
    slots: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Calls that it decodes together; others wait."""
    context_tokens: Annotated[int, Meta(ge=2, le=2**20)] = 8192
    """Tokens of a call, prompt and answer together; its cache has room for so many in each slot."""

    @property
    def lacking(self) -> str:
        """The first setting that is needed and not given, with what to do; "" for none."""
        if not self.model_path:
            return "model_path: is empty: set it to the folder of the judge's model"
        if not self.reserve_mb:
            return "reserve_mb: is 0: set it to the memory of the device that the judge may use"
        return ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Judge(Section, frozen=True, kw_only=True):
    """A language model that scores responses by a rubric: verifier `judge` (docs/tasks.md). `url`,
    `model` and a rubric are needed. Limits are of the whole job: each of `workers` has an equal part."""

    place: Literal["url", "instances", "colocated"] = "url"
    """Where the judge is: `url`, a server that you name; `instances`, engines behind a gateway of this host
    that serves `model` (`rlctl gateway`), which is found when the job is started if `url` is empty. An engine
    that vanishes costs no judgement: another one continues it; `colocated`, a process of the job itself,
    beside its engine on the reserved host."""
    colocated: Colocated = Colocated()
    url: Annotated[str, Meta(pattern=URL)] = ""
    """Base URL of a server with OpenAI's API, such as `http://judge:8000/v1`; `/chat/completions` is added.
    It contains no user and password: `key_env`."""
    replicas: list[Annotated[str, Meta(pattern=URL, min_length=1)]] = []
    """Base URLs of other servers of the same model; a call goes to the one with the fewest open calls, and
    is repeated on another one."""
    model: str = ""
    """Name of the model, as its server has it."""
    rubric: HostPath = ""
    """File with the rubric: what earns which score. It is read on the host of the reward workers."""
    rubric_text: str = ""
    """The rubric itself, instead of a file."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest score of the judge. A response scores its place between them, from 0 to 1."""
    votes: Annotated[int, Meta(ge=1, le=15)] = 1
    """Scores of the judge for one response; their median counts. Each is asked with another seed: set
    `temperature` above 0 too, or most servers repeat the first."""
    temperature: NotNegative = 0.0
    """Sampling temperature of the judge."""
    max_tokens: Annotated[int, Meta(ge=1, le=2**17)] = 1024
    """Longest answer of the judge, its thinking included; a longer one is cut, and has no score."""
    json_schema: bool = False
    """Have the server hold the answer to a JSON schema (`response_format`); servers without it answer 400."""
    max_response_chars: Annotated[int, Meta(ge=1, le=2**20)] = 20_000
    """Characters of a response that the judge reads; of a longer one the middle is left out."""
    deadline_s: Positive = 60.0
    """Time for the score of one response, on the clock, with all votes, tries and waits; then its status is
    `unavailable`."""
    attempts: Annotated[int, Meta(ge=1, le=20)] = 4
    """Calls for one vote, where the server is unavailable or the answer has no score; a hedge is none."""
    hedge_s: NotNegative = 0.0
    """A call that takes so long is made again on a replica, and the first answer counts; 0: never."""
    max_concurrent: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Calls of the job at a time."""
    requests_per_minute: Natural = 0
    """Calls of the job in a minute; 0: no limit."""
    tokens_per_minute: Natural = 0
    """Tokens of the job in a minute, those of prompts and answers; 0: no limit. A call counts as 1 token for
    3 bytes of its prompt, and `max_tokens`, until the server reports the number."""
    workers: Natural = 0
    """Reward workers that share these limits; 0: `reward.workers`. With reward hosts: the most that the job
    has at a time, on all hosts. Each further worker would go beyond the limits by its part."""
    key_env: Annotated[str, Meta(pattern=VARIABLE)] = ""
    """Name of a variable in the environment of the job's head that holds the API key; "": none is sent."""

    @property
    def lacking(self) -> str:
        """The first setting that a judge needs and that is not given, with what to do; "" for none."""
        if not self.url and self.place == "url":
            return "url: is empty: set it to the base URL of the judge's server, http://HOST:PORT/v1"
        if self.place == "colocated" and self.colocated.lacking:
            return f"colocated.{self.colocated.lacking}"
        if not self.served_model:
            return "model: is empty: set it to the model's name, one that GET url/models lists"
        if not self.rubric and not self.rubric_text:
            return "rubric: is empty: set it to a file with what earns which score, or set rubric_text"
        return ""

    @property
    def base_url(self) -> str:
        """Base URL of its server; "" where it has to be found."""
        if self.place == "colocated":
            return f"http://{self.colocated.listen}/v1"
        return self.url

    @property
    def served_model(self) -> str:
        """Name of the model, as its server has it; "" where it is not known."""
        return self.model or (COLOCATED_MODEL if self.place == "colocated" else "")

    @property
    def used(self) -> bool:
        """Whether there is a judge."""
        return bool(self.url) or self.place != "url"

    def _check_colocated(self) -> None:
        """Raises ValueError."""
        if self.url or self.replicas:
            raise ValueError(
                'url, replicas: expected none where place is "colocated": colocated.listen is it'
            )
        host, _ = self.colocated.address
        if not self.key_env and not (host == "::1" or host.startswith("127.")):
            raise ValueError(
                f"key_env: expected a variable where colocated.listen is beyond loopback, got {host}: the "
                "judge answers others that have its key alone"
            )

    def __post_init__(self) -> None:
        if self.place == "colocated":
            self._check_colocated()
        low, high = self.scale
        if not low < high:
            raise ValueError(f"scale: expected a lower number before a higher one, got [{low:g}, {high:g}]")
        if self.rubric and self.rubric_text:
            raise ValueError("rubric_text: expected nothing beside rubric: leave one of the two out")
        if self.hedge_s and not self.replicas:
            raise ValueError("hedge_s: expected 0 without replicas: name servers that may take second calls")
        if self.hedge_s >= self.deadline_s:
            raise ValueError(f"hedge_s: expected less than deadline_s ({self.deadline_s:g})")
