import json

import pytest

from pyengine.cli import main
from pyengine.sampling_params import SamplingParams
from tests.cli.fakes import FakeLLM


def test_bench_reports_rates_from_the_engines_own_timings(
    llms: list[FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = "bench m --batch-sizes 1 4 --input-len 8 --output-len 5 --repeats 2 --json --seed 0"
    assert main(argv.split()) == 0
    numbers = json.loads(capsys.readouterr().out)
    # The fake spends 1 ms in the queue, 10 ms up to the first token, and 100 ms after it.
    assert numbers["decode_tokens_per_s_batch_1"] == pytest.approx(4 / 0.1)
    assert numbers["decode_tokens_per_s_batch_4"] == pytest.approx(16 / 0.1)
    assert numbers["prefill_tokens_per_s_62"] == pytest.approx(62 / 0.01)  # 64 less two outputs
    assert numbers["time_to_first_token_from_start_s"] >= 0  # rounded to ms
    assert numbers["max_rss_mb"] > 1

    assert llms[0].config["enable_prefix_caching"] is False
    batches = [(len(prompts), len(prompts[0])) for _, prompts, _ in llms[0].calls]
    assert batches == [(1, 8), (1, 8), (1, 8), (4, 8), (4, 8), (1, 62), (1, 62)]
    assert llms[0].calls[1][2] == SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_bench_prints_a_table(llms: list[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "time_to_first_token_from_start_s",
        "decode_tokens_per_s_batch_1",
        "decode_tokens_per_s_batch_16",
        "prefill_tokens_per_s_62",
        "max_rss_mb",
    ]
