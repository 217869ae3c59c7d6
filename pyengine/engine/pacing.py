"""How much of waiting prompts a step may feed while streams run."""


class PrefillPacer:
    """Finds how many prompt tokens beside decodes make a step as long as it may be.

    A running stream gets a token per step, so the length of a step is the gap that its reader
    sees. The pacer scales the number of prompt tokens by target / measured length, step after
    step. Since a step's length grows with them, the number settles where the length is just below
    the target, whatever the model and the machine; where the decodes alone take longer, it stays
    at a minimum that keeps the prompts moving, and where long prompts queue up, it is a part of
    these. It chooses when a token is computed, never what is computed.

    Args:
        target_ms: how long a step with decodes and prompt tokens may take.
        max_tokens: the most to feed; also what is fed until a step was measured.
    """

    # Fewer tokens would take little less time: a step reads all weights, whatever it computes.
    MIN_TOKENS = 16
    # One fast step must not let the next become much too long.
    _MAX_GROWTH = 2.0
    # Equal steps differ by a few per cent; hardly any of them should exceed the target.
    _AIM = 0.9

    # The target gives way to a queue: readers wait longer for a token where many wait for their
    # first. A step feeds at least this part of what waits.
    _DRAIN_STEPS = 40

    def __init__(self, target_ms: float, max_tokens: int) -> None:
        self._aim_ms = self._AIM * target_ms
        self._max_tokens = max_tokens
        self._num_tokens = float(max_tokens)

    def limit(self, num_decodes: int, num_waiting_tokens: int) -> int:
        """The most prompt tokens to feed in a step beside so many decodes, of those that wait."""
        if num_decodes == 0:
            return self._max_tokens
        fitting = max(
            int(self._num_tokens),
            # Many decodes make a step long anyway: prompts get about as much of it as they do.
            self.MIN_TOKENS + num_decodes,
            num_waiting_tokens // self._DRAIN_STEPS,
        )
        return min(fitting, self._max_tokens)

    def observe(self, num_decodes: int, num_prompt_tokens: int, step_ms: float) -> None:
        """Takes in how long a step took."""
        if num_prompt_tokens < self.MIN_TOKENS:
            return  # they hardly count in its length
        fitting = num_prompt_tokens * self._aim_ms / step_ms
        # A step that was short since there was little to feed, or since no stream ran, doesn't
        # show that more would fit.
        if num_decodes and num_prompt_tokens >= self._num_tokens / 2:
            self._num_tokens = min(fitting, self._MAX_GROWTH * self._num_tokens)
        else:
            self._num_tokens = min(fitting, self._num_tokens)
        self._num_tokens = min(max(self._num_tokens, self.MIN_TOKENS), self._max_tokens)
