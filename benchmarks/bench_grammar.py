"""What a grammar adds to a decode step.

    python -m benchmarks.bench_grammar smollm2-135m-instruct --batch-sizes 1 16

Rounds with and without a JSON schema alternate in one process; a step's cost is the median over
the decode steps of all rounds. Beside it stands what llguidance took of it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.sampling_params import Grammar, SamplingParams
from pyengine.structured import GrammarMatcher

PROMPT = "A list of people in JSON, with their names, ages, cities and hobbies:\n"
# Enough items that no output ends within a round.
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "city": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["student", "worker", "retired"]},
            "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        },
        "required": ["name", "age", "city", "kind", "hobbies"],
        "additionalProperties": False,
    },
}


class MatcherClock:
    """Sums up the seconds spent in all matchers."""

    def __init__(self) -> None:
        self.seconds = {"allowed_tokens": 0.0, "accept": 0.0}
        for name in self.seconds:
            setattr(GrammarMatcher, name, self._timed(name, getattr(GrammarMatcher, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed


def decode_steps(
    engine: Engine, batch_size: int, num_tokens: int, grammar: Grammar | None, round_: int
) -> list[float]:
    """The seconds of each step that fed one token of each of `batch_size` sequences."""
    token_ids = engine.loaded.tokenizer.encode(PROMPT)
    for k in range(batch_size):
        params = SamplingParams(
            max_tokens=num_tokens, ignore_eos=True, grammar=grammar, seed=k + 100 * round_
        )
        engine.add_request(engine.new_request(f"r{k}", token_ids, params))
    seconds = []
    while engine.has_unfinished:
        start = time.perf_counter()
        updates = engine.step()
        elapsed = time.perf_counter() - start
        if len(updates) == batch_size:
            seconds.append(elapsed)
    return seconds[1:]  # the first may hold prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--num-tokens", type=int, default=96, help="of each output")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engine = Engine.from_config(EngineConfig(model=options.model, max_draft_tokens=0))
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    clock = MatcherClock()
    decode_steps(engine, 1, 8, grammar, 0)  # compiles
    print("batch  free ms  held ms  added  masks us/token  accept us/token")
    for batch_size in options.batch_sizes:
        free: list[float] = []
        held: list[float] = []
        clock.seconds = dict.fromkeys(clock.seconds, 0.0)
        for round_ in range(options.rounds):
            free += decode_steps(engine, batch_size, options.num_tokens, None, round_)
            held += decode_steps(engine, batch_size, options.num_tokens, grammar, round_)
        num_tokens = batch_size * options.num_tokens * options.rounds
        masks, accepts = (1e6 * seconds / num_tokens for seconds in clock.seconds.values())
        free_ms, held_ms = (1e3 * statistics.median(steps) for steps in (free, held))
        print(
            f"{batch_size:5}  {free_ms:7.2f}  {held_ms:7.2f}  {held_ms / free_ms - 1:5.1%}"
            f"  {masks:14.0f}  {accepts:15.0f}"
        )


if __name__ == "__main__":
    main()
