"""The benchmark of grammars runs and prints what it says."""

import pytest

from benchmarks import bench_grammar
from pyengine.structured import GrammarMatcher


def test_it_prints_a_row_for_each_batch_size(
    demo_model_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("allowed_tokens", "accept"):  # it times these for good
        monkeypatch.setattr(GrammarMatcher, name, getattr(GrammarMatcher, name))
    options = ["--batch-sizes", "1", "2", "--num-tokens", "8", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["bench_grammar", str(demo_model_path), *options])
    bench_grammar.main()
    header, *rows = capsys.readouterr().out.splitlines()
    assert "masks us/token" in header
    assert [row.split()[0] for row in rows] == ["1", "2"]
