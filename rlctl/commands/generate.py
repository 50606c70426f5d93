"""`rlctl generate`: has the instances of a running job continue a prompt."""

import argparse
from array import array
from pathlib import Path
from uuid import uuid4

from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady
from gleaner.actors.reward.prompts import BadTokenizer, Prompts
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    console,
    print_json,
    run_async,
)
from gleaner.rlctl.errors import OK, failed, nothing, usage
from gleaner.rlctl.runs import find_driven

_DESCRIPTION = """\
Continue a prompt with the newest weights of a running job, or with a given version.

If a process or host dies meanwhile, another instance continues the response from its last token. A repeated
call with the same --id and the same contents is the same request: the same answer, without a second
generation."""

_EXAMPLES = """\
  rlctl generate --prompt 'Spell this word backward: house'
  rlctl generate --prompt hello --min-version 12 --wait 30
  rlctl generate --tokens 5,17,9 --exact-version 12 --json"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "generate",
        generate,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt", metavar="TEXT", help="a question, in the prompt format of the job's problems"
    )
    prompt.add_argument("--tokens", metavar="N,N,...", help="the prompt as tokens")
    version = parser.add_mutually_exclusive_group()
    version.add_argument("--min-version", type=int, metavar="N", help="weights of version N or a later one")
    version.add_argument("--exact-version", type=int, metavar="N", help="weights of exactly version N")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="longest wait for that version (default: 0)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=0,
        metavar="N",
        help="longest response, tokens (default: the job's)",
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.add_argument(
        "--deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit; then the response ends as it is (default: 60)",
    )
    parser.add_argument("--id", default="", metavar="ID", help="id of the request (default: a new one)")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint with the tokenizer (default: the run's)"
    )
    add_cluster(parser)
    add_json(parser)


def generate(args: argparse.Namespace) -> int:
    """Run the command."""
    directory, longest = _of_run(args)
    tokens = _tokens(args, directory)
    request = Generate(
        id=args.id or uuid4().hex,
        prompt=array("I", tokens).tobytes(),
        max_new_tokens=args.max_new_tokens or longest,
        temperature=args.temperature,
        seed=args.seed,
        min_version=args.min_version,
        exact_version=args.exact_version,
        wait_s=args.wait,
        deadline_s=args.deadline,
    )

    async def ask() -> Generated | VersionNotReady:
        async with chosen_cluster(args) as cluster:
            return await cluster.generate(request)

    answer = run_async(ask())
    if isinstance(answer, VersionNotReady):
        raise failed(refusal(answer))
    text = "" if directory is None else _prompts(directory).decode(array("I", answer.tokens))
    if args.json:
        print_json(
            {
                "id": answer.id,
                "status": answer.status,
                "text": text,
                "tokens": array("I", answer.tokens).tolist(),
                "logprobs": array("f", answer.logprobs).tolist(),
                "version_start": answer.version_start,
                "version_end": answer.version_end,
                "versions": [[span.version, span.count] for span in answer.versions],
                "sha256": answer.sha256.hex(),
            }
        )
        return OK
    out = console()
    out.print(text or ", ".join(map(str, array("I", answer.tokens))), markup=False)
    spans = ", ".join(f"{span.count} of version {span.version}" for span in answer.versions)
    out.print(f"{answer.status}; tokens: {spans or 'none'}", style="dim")
    return OK


def refusal(answer: VersionNotReady) -> str:
    """The answer as text."""
    exact = "exactly version" if answer.exact else "version"
    applied = "nothing yet" if answer.applied is None else f"version {answer.applied}"
    advice = "ask again, or --wait" if answer.retryable else "it was replaced and does not come back"
    return f"{exact} {answer.target} is not served: {applied} is; {advice}"


def _of_run(args: argparse.Namespace) -> tuple[Path | None, int]:
    """The folder of the tokenizer (None where it is unknown), and the longest response of the job."""
    if args.head:
        if args.prompt is not None and args.model is None:
            raise usage("--prompt needs --model DIR for a cluster that runs elsewhere; or give --tokens")
        if not args.max_new_tokens:
            raise usage("--max-new-tokens is needed for a cluster that runs elsewhere")
        return args.model, 0
    try:
        run = find_driven(args.runs_dir, args.run_name)
    except CannotRun as problem:
        raise nothing(str(problem)) from problem
    config = run.config()
    return args.model or Path(config.model.path or run.model), config.rollout.max_new_tokens


def _tokens(args: argparse.Namespace, directory: Path | None) -> list[int]:
    if args.tokens is None:
        assert directory is not None
        return _prompts(directory).encode(args.prompt)
    try:
        tokens = [int(text) for text in str(args.tokens).split(",")]
    except ValueError:
        raise usage(f"--tokens {args.tokens}: expected numbers separated by commas") from None
    if not all(0 <= token < 2**32 for token in tokens):
        raise usage(f"--tokens {args.tokens}: expected numbers from 0 to 2^32 - 1")
    return tokens


def _prompts(directory: Path) -> Prompts:
    try:
        return Prompts(directory)
    except BadTokenizer as problem:
        raise usage(str(problem)) from problem
