"""`rlctl deadletters`: undeliverable messages by reason, with the newest samples."""

import argparse
import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gleaner.nodeagent.cluster_view import ClusterReplies
from gleaner.rlctl.columns import Column, fitted
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    ask_everywhere,
    console,
    print_json,
    tell_silent,
)
from gleaner.rlctl.errors import OK, usage
from gleaner.rlctl.quantity_format import age
from gleaner.supervisor.dead_letters import DeadLetter
from gleaner.supervisor.inspection.messages import DeadLettersOf, ListDeadLetters

_DESCRIPTION = """\
Show undeliverable messages (dead letters) since each process started: counts by reason, and the newest.

Some are harmless: a message to an actor that has just been replaced ("stale incarnation"), an answer that
arrived after its ask had ended ("reply: late"). Many of "mailbox full" or "link full or gone" mean that a
receiver is slower than its senders: see `rlctl top`."""

_EXAMPLES = """\
  rlctl deadletters
  rlctl deadletters --reason "mailbox*" --limit 50
  rlctl deadletters --json"""

MAX_LIMIT = 500
_COUNTS = (Column("COUNT", right=True), Column("PROCESS", spare=1), Column("REASON"))
_SAMPLES = (
    Column("AGO", right=True),
    Column("KIND"),
    Column("TO"),
    Column("FROM", spare=1),
    Column("PROCESS", spare=2),
    Column("REASON"),
)


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "deadletters",
        deadletters,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("--reason", default="*", metavar="GLOB", help="only these reasons (default: all)")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most N samples (default: 20)")
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def deadletters(args: argparse.Namespace) -> int:
    """Run the command."""
    if not 0 <= args.limit <= MAX_LIMIT:
        raise usage(f"--limit {args.limit}: expected 0 to {MAX_LIMIT}")
    seen = ask_everywhere(args, ListDeadLetters(limit=MAX_LIMIT), DeadLettersOf)
    seen = ClusterReplies([only(answer, args.reason) for answer in seen.answers], seen.silent)
    if args.json:
        print_json(as_json(seen, args.limit))
        return OK
    out = console()
    counts = count_rows(seen.answers)
    out.print(fitted(_COUNTS, counts, out.width) if counts else "no dead letters")
    samples = sample_rows(seen.answers, args.limit)
    if samples:
        out.print()
        out.print(fitted(_SAMPLES, samples, out.width))
    tell_silent(seen.silent, out)
    return OK


def only(answer: DeadLettersOf, reason: str) -> DeadLettersOf:
    """The part of an answer whose reasons match a glob."""
    counts = {name: count for name, count in answer.counts.items() if fnmatch.fnmatchcase(name, reason)}
    samples = [one for one in answer.samples if one.reason in counts]
    return msgspec.structs.replace(answer, counts=counts, samples=samples)


def count_rows(answers: Iterable[DeadLettersOf]) -> list[Sequence[str]]:
    """Counts by process and reason, the highest first."""
    counts: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        for reason, count in answer.counts.items():
            counts[f"{answer.node}/{answer.process}", reason] += count
    return [(f"{count:,}", process, reason) for (process, reason), count in counts.most_common()]


def sample_rows(answers: Iterable[DeadLettersOf], limit: int) -> list[Sequence[str]]:
    """The newest samples of all, the newest first."""
    return [
        (age(ago_s), one.kind, one.to, _from(one.source), f"{answer.node}/{answer.process}", one.reason)
        for ago_s, answer, one in newest(answers)[:limit]
    ]


def as_json(seen: ClusterReplies[DeadLettersOf], limit: int) -> dict[str, object]:
    """The JSON object."""
    samples = [
        {
            "ago_s": ago_s,
            "reason": one.reason,
            "kind": one.kind,
            "to": one.to,
            "source": one.source,
            **_place(answer),
        }
        for ago_s, answer, one in newest(seen.answers)[:limit]
    ]
    counts = [{**_place(answer), "counts": answer.counts} for answer in seen.answers]
    return {"processes": counts, "samples": samples, "silent": seen.silent}


def newest(answers: Iterable[DeadLettersOf]) -> list[tuple[float, DeadLettersOf, DeadLetter]]:
    """All samples, the newest first, each with its age in seconds and its process."""
    found = [(answer.now_s - one.t_s, answer, one) for answer in answers for one in answer.samples]
    return sorted(found, key=lambda entry: entry[0])


def _place(answer: DeadLettersOf) -> dict[str, str]:
    return {"node": answer.node, "process": answer.process}


def _from(name: str) -> str:
    return "-" if not name or name.startswith("$") else name
