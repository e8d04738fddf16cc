"""What README and docs quote is what the records say."""

import pytest

from experiments import numbers


def test_the_quoted_numbers_are_those_of_the_records():
    numbers.main(["--check"])


def test_a_stale_block_is_found_renewed_and_kept(monkeypatch, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "Up to <!-- numbers: gru_speed_up -->3x<!-- end --> faster.\n\n"
        "<!-- numbers: cpu_table -->\nold\n<!-- end -->\nrest\n"
    )
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="out of date"):
        numbers.main(["--check"])
    assert capsys.readouterr().out == "README.md: gru_speed_up\nREADME.md: cpu_table\n"
    assert "3x" in (tmp_path / "README.md").read_text()
    numbers.main([])
    text = (tmp_path / "README.md").read_text()
    speed_up = numbers.BLOCKS["gru_speed_up"]("")
    assert f"Up to <!-- numbers: gru_speed_up -->{speed_up}<!-- end --> faster." in text
    assert (
        "old" not in text and text.endswith("\n<!-- end -->\nrest\n") and f"| {speed_up} |" in text
    )
    numbers.main(["--check"])


def test_links_lead_from_the_quoting_file_to_the_record(monkeypatch, tmp_path):
    page = numbers.ROOT / "docs" / "page.md"
    assert "](../experiments/records/h200_layers.json)" in numbers.between(
        "gpu_table", page, inline=False
    )


def test_an_unknown_block_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "README.md").write_text("<!-- numbers: nothing -->1<!-- end -->")
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="found the block 'nothing', wanted one of cpu_table"):
        numbers.main(["--check"])


@pytest.mark.parametrize("name", numbers.BLOCKS)
def test_every_block_has_something_to_say(name):
    assert any(letter.isdigit() for letter in numbers.BLOCKS[name]("experiments/records"))


def test_where_stock_wins_is_marked():
    assert "**0.97x**" in numbers.BLOCKS["gpu_table"]("")
    assert "by PyTorch" in numbers.BLOCKS["cpu_table"]("")
    assert "**0.97x**" in numbers.BLOCKS["pruned_table"]("")


def test_the_claims_hold():
    """Not only is what is said what was measured: it is worth saying."""
    from experiments.recording import read

    assert read("bitstream_rnn")["speed_up"]["step"] > 1
    assert min(row["steps_together"] for row in read("irmas_gru")["rows"]) >= 200
    for row in read("table1")["rows"]:
        assert row["speed_up"] >= row["paper_speed_up"]
        assert round(row["sparsity"], 5) == row["paper_sparsity"]
