"""SGLang plugin: `/server_info` with tokens made per request of a paused server.

Owns two hooks in SGLang's scheduler, which is where tokens are made. After a pause that retracts all (`mode`
"retract") the scheduler sends the gathered tokens of each stream. Its information then has `gleaner`, with
the requests that wait in it. Nothing is guessed from clocks: the scheduler makes no token while it is paused.
"""

import inspect
from typing import Any

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
KEY = "gleaner"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; SGLang calls it in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{SCHEDULER}.pause_generation", tell_the_rest, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", say_what_was_made, HookType.AFTER)


def tell_the_rest(_: None, scheduler: Any, order: Any) -> None:
    """Send the tokens made before the pause on streams that send several tokens at a time."""
    if order.mode != "retract":
        return
    unsent = [
        one for one in scheduler.waiting_queue if one.stream and len(one.output_ids) > one.send_token_offset
    ]
    intervals = [one.sampling_params.stream_interval for one in unsent]
    for one in unsent:
        one.sampling_params.stream_interval = 1
    try:
        scheduler.output_streamer.stream_output(unsent, any(one.return_logprob for one in unsent))
    finally:
        for one, interval in zip(unsent, intervals, strict=True):
            one.sampling_params.stream_interval = interval


def drops_caches_of_what_waits(scheduler: Any) -> bool:
    """Whether new weights void all caches although requests wait. SGLang 0.5.20 drops them only if none
    waits, and otherwise ends its process."""
    return "ignore_waiting" in inspect.signature(scheduler.is_fully_idle).parameters


def say_what_was_made(answer: Any, scheduler: Any, _: Any) -> Any:
    """`made`: by request, the tokens that the scheduler has made; only for requests that go on after the
    pause.
    """
    if not drops_caches_of_what_waits(scheduler):
        return answer
    paused = scheduler._engine_paused
    waiting = scheduler.waiting_queue if paused else []
    made = {one.rid: len(one.output_ids) for one in waiting}
    answer.internal_state[KEY] = {"paused": paused, "made": made}
    return answer
