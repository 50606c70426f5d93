"""Body and answer of SandboxFusion's `/run_code`, and their translation. Pure.

Source: SandboxFusion `sandbox/server/sandbox_api.py`. Its files are refused: a program has none but its own.
"""

from typing import Any

import msgspec

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.protocol.reward import CodeRan, CommandRun
from gleaner.actors.reward.verifiers.code_runs import FINISHED, NAMES
from gleaner.actors.reward_service.asking import RunAsk, TooLong
from gleaner.actors.reward_service.given_problems import response_of

MAX_STDIN_BYTES = 8 * 2**20
MAX_TIMEOUT_S = 60.0
SUCCESS, FAILED = "Success", "Failed"


class RunCodeBody(msgspec.Struct, kw_only=True):
    """language: python, c++ or c. run_timeout, compile_timeout: seconds of processor time."""

    code: str
    language: str
    stdin: str | None = None
    run_timeout: float = 10.0
    compile_timeout: float = 10.0
    files: dict[str, Any] | None = None
    fetch_files: list[str] | None = None


class RunCodeAnswer(msgspec.Struct, kw_only=True):
    """status: Success where the program ended with exit code 0, else Failed."""

    status: str
    message: str = ""
    compile_result: CommandRun | None = None
    run_result: CommandRun | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


def of_sandbox_fusion(body: RunCodeBody) -> RunAsk:
    """Raises BadAsk, TooLong."""
    if body.language not in NAMES:
        raise BadAsk(f"expected one of {', '.join(NAMES)}, got {body.language!r:.80}", "language")
    for field in ("files", "fetch_files"):
        if getattr(body, field):
            raise BadAsk("a program has no files here; send what it needs on stdin", field)
    for field in ("run_timeout", "compile_timeout"):
        if not 0 < getattr(body, field) <= MAX_TIMEOUT_S:
            raise BadAsk(f"expected seconds above 0 and up to {MAX_TIMEOUT_S:g}", field)
    stdin = body.stdin or ""
    size_bytes = len(stdin.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_STDIN_BYTES:
        raise TooLong("stdin", size_bytes, MAX_STDIN_BYTES)
    return RunAsk(
        language=body.language,
        code=response_of(body.code, "code"),
        stdin=stdin,
        run_s=body.run_timeout,
        compile_s=body.compile_timeout,
    )


def to_sandbox_fusion(ran: CodeRan) -> RunCodeAnswer:
    """The answer for a program that was run, or could not be compiled."""
    last = ran.ran or ran.compiled
    done = ran.ran is not None and ran.ran.status == FINISHED and ran.ran.return_code == 0
    return RunCodeAnswer(
        status=SUCCESS if done else FAILED,
        message="" if done or last is None or last.status == FINISHED else last.stderr[:200],
        compile_result=ran.compiled,
        run_result=ran.ran,
    )
