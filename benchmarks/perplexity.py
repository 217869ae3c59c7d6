"""What a number format costs in quality: perplexity on a text, and agreement with a better format.

    python -m benchmarks.perplexity MODEL --text FILE [--dtype ...] [--quantization ...]

The perplexity is that of llama.cpp's llama-perplexity on the same text and context: the text is cut
into windows of `--context` tokens, the rest is left out; each window is a prompt of its own, its
first token replaced by the beginning-of-sequence token if the model asks for one; the tokens of its
second half, but the first of them, are scored. `--save` keeps the likeliest token at every scored
place, and `--reference`, a file so kept by another run, tells how often this run agrees with it.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyengine import LLM, SamplingParams
from pyengine.cli.options import add_options
from pyengine.config import EngineConfig

_SCORING = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
_WINDOWS_AT_ONCE = 4


@dataclass
class Scores:
    """Of the scored tokens, in the text's order."""

    logprobs: list[float]
    top_token_ids: list[int]  # the likeliest token at each place

    @property
    def perplexity(self) -> float:
        """e to the mean of the negated log-probabilities."""
        return math.exp(-statistics.fmean(self.logprobs))

    @property
    def standard_error(self) -> float:
        """Of the perplexity, were the tokens independent."""
        variance = statistics.pvariance(self.logprobs)
        return self.perplexity * math.sqrt(variance / (len(self.logprobs) - 1))

    def agreement(self, reference: Sequence[int]) -> float:
        """The share of places whose likeliest token is the reference's.

        Raises:
            ValueError: the reference is about another text or context.
        """
        if len(reference) != len(self.top_token_ids):
            raise ValueError(
                f"the reference has {len(reference)} tokens, this run {len(self.top_token_ids)}: "
                "both must have the same text, context and windows"
            )
        pairs = zip(self.top_token_ids, reference, strict=True)
        return statistics.fmean(mine == theirs for mine, theirs in pairs)


def windows_of(
    token_ids: Sequence[int], prefix: Sequence[int], context: int, most: int | None
) -> list[list[int]]:
    """Cuts a text into windows of `context` tokens, each of which begins with `prefix`.

    Args:
        token_ids: of the whole text, prefix included.
        prefix: the tokens that the model wants before any text.
        context: tokens in a window.
        most: how many windows to make at most; None makes all.

    Raises:
        ValueError: the text has fewer than two windows.
    """
    num_windows = len(token_ids) // context
    if num_windows < 2:
        raise ValueError(f"the text must have at least {2 * context} tokens, got {len(token_ids)}")
    starts = range(0, min(num_windows, most or num_windows) * context, context)
    return [[*prefix, *token_ids[start + len(prefix) : start + context]] for start in starts]


def score(llm: LLM, windows: Sequence[list[int]]) -> Scores:
    """The tokens after the first of each window's second half."""
    scores = Scores([], [])
    for first in range(0, len(windows), _WINDOWS_AT_ONCE):
        for output in llm.generate(windows[first : first + _WINDOWS_AT_ONCE], _SCORING):
            assert output.prompt_logprobs is not None
            for place in output.prompt_logprobs[len(output.prompt_token_ids) // 2 + 1 :]:
                assert place is not None
                scores.logprobs.append(place.logprob)
                scores.top_token_ids.append(place.top_token_ids[0])
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a folder, a .gguf file, a hub name, or the demo's name")
    parser.add_argument("--text", type=Path, required=True, help="a file of UTF-8 text")
    parser.add_argument("--context", type=int, default=512, help="tokens in a window")
    parser.add_argument("--windows", type=int, help="the most windows to score (default: all)")
    parser.add_argument("--save", type=Path, help="keep the likeliest tokens in this file")
    parser.add_argument("--reference", type=Path, help="such a file of another run")
    add_options(parser, "engine", EngineConfig, exclude=("model",))
    args = vars(parser.parse_args())
    text, save, reference = args.pop("text"), args.pop("save"), args.pop("reference")
    context, most = args.pop("context"), args.pop("windows")

    llm = LLM(args.pop("model"), **{"enable_prefix_caching": False, **args})
    token_ids = llm.tokenizer.encode(text.read_text())
    windows = windows_of(token_ids, llm.tokenizer.encode(""), context, most)
    scores = score(llm, windows)
    report = {
        "num_windows": len(windows),
        "num_scored_tokens": len(scores.logprobs),
        "perplexity": round(scores.perplexity, 4),
        "standard_error": round(scores.standard_error, 4),
    }
    if reference is not None:
        report["agreement"] = round(scores.agreement(json.loads(reference.read_text())), 4)
    if save is not None:
        save.write_text(json.dumps(scores.top_token_ids))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
