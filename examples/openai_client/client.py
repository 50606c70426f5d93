"""The `openai` package against Gleaner's gateway: chat, streamed, and a completion of token ids.

    rlctl model new my-model
    rlctl engine serve --model my-model --listen 127.0.0.1:30000 &
    rlctl gateway --engine-url http://127.0.0.1:30000 &
    python examples/openai_client/client.py http://127.0.0.1:30080

When an engine dies during a stream, the gateway continues the response on another engine; this client sees no
error.
"""

import sys

from openai import OpenAI


def main(url: str) -> None:
    """Print a streamed chat response and the tokens of a completion."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Spell backward: abc"}],
        max_completion_tokens=16,
        stream=True,
    )
    text, reason = "", None
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    print(f"chat ({reason}): {text!r}")
    done = client.completions.create(
        model=model, prompt=[5, 6, 7], max_tokens=8, extra_body={"return_token_ids": True}
    )
    choice = done.choices[0].model_dump()  # `token_ids` is an addition of inference servers
    print(f"completion ({choice['finish_reason']}): {len(choice['token_ids'])} tokens")


if __name__ == "__main__":
    main(sys.argv[1])
