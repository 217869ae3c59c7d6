"""Fields of OpenAI's chat completions about accounts and services that don't exist here."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pyengine.server.body import Body

# OpenAI's limits.
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512

# What OpenAI takes, or took, and isn't to be had here -> why, or what to do instead.
_UNSUPPORTED = {
    "audio": "answers are text",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "prediction": "leave it out",
    "reasoning_effort": "what a model's chat template knows of that goes into chat_template_kwargs",
    "verbosity": "say it in a message",
    "web_search_options": "no tools run on this server",
}


def _check_not_stored(store: bool) -> bool:
    if store:
        raise ValueError("answers aren't kept here: leave it out, or send false")
    return store


NotStored = Annotated[bool, AfterValidator(_check_not_stored)]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARS)],
        Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARS)],
    ],
    Field(max_length=MAX_METADATA_PAIRS),
]


class AccountBody(Body):
    """Taken as far as nothing depends on them."""

    unsupported = _UNSUPPORTED

    metadata: Metadata | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: NotStored = False
