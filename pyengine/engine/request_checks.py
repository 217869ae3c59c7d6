"""What a request must be for an engine to serve it."""

from pyengine.errors import ContextLengthError, InvalidRequestError
from pyengine.sampling_params import SamplingParams


def check_request(
    prompt_token_ids: list[int], params: SamplingParams, *, max_sequence_len: int, vocab_size: int
) -> None:
    """Checks that a sequence of this prompt fits, and that all token ids are in the vocabulary.

    Args:
        max_sequence_len: in tokens.

    Raises:
        ContextLengthError: it is too long; `param` names the field at fault.
        InvalidRequestError: it can never be served for another reason.
    """
    num_prompt = len(prompt_token_ids)
    if num_prompt == 0:
        raise InvalidRequestError("the prompt must hold at least one token", "prompt")
    # The length first: it bounds how many ids there are to check.
    max_tokens = params.max_tokens or 1
    limit = f"this model's maximum context length is {max_sequence_len} tokens"
    if num_prompt > max_sequence_len:
        raise ContextLengthError(f"{limit}, but the prompt has {num_prompt}", "prompt")
    # The last token is never fed back.
    room = max_sequence_len - num_prompt + 1
    if max_tokens > room:
        raise ContextLengthError(
            f"max_tokens must be at most {room}, got {max_tokens}: {limit}, of which the prompt "
            f"takes {num_prompt}, and the last token of an answer none",
            "max_tokens",
        )
    for name, token_ids in (
        ("prompt", prompt_token_ids),
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias or ()),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{name} holds the token id {token_id}, but the vocabulary has ids 0 to "
                    f"{vocab_size - 1}",
                    name,
                )
