"""What a request must be for an engine to serve it."""

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import SamplingParams


def check_request(
    prompt_token_ids: list[int], params: SamplingParams, *, max_sequence_len: int, vocab_size: int
) -> None:
    """Checks that a sequence of this prompt fits, and that all token ids are in the vocabulary.

    Args:
        max_sequence_len: in tokens.

    Raises:
        InvalidRequestError: it can never be served; `param` names the field at fault.
    """
    num_prompt = len(prompt_token_ids)
    if num_prompt == 0:
        raise InvalidRequestError("the prompt must hold at least one token", "prompt")
    # The length first: it bounds how many ids there are to check.
    max_tokens = params.max_tokens or 1
    # The last token is never fed back, so it needs no slot.
    num_slots = num_prompt + max_tokens - 1
    if num_slots > max_sequence_len:
        raise InvalidRequestError(
            f"the prompt's {num_prompt} tokens and max_tokens {max_tokens} need {num_slots} slots, "
            f"but a sequence has at most {max_sequence_len}",
            "max_tokens" if num_prompt <= max_sequence_len else "prompt",
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
