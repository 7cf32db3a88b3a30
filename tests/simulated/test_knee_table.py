"""The table of knees as its users call it; the table itself takes minutes."""

from __future__ import annotations

import pytest

from tests.simulated import knee_table


def refuse(*_: object) -> list[knee_table.Row]:
    raise AssertionError("the table was run")


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--jsn"], 2), (["a", "b"], 2)])
def test_help_and_bad_options_run_nothing(
    arguments: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(knee_table, "measure", refuse)
    with pytest.raises(SystemExit) as ended:
        knee_table.main(arguments)
    assert ended.value.code == code
    captured = capsys.readouterr()
    assert "usage: python -m tests.simulated.knee_table" in captured.out + captured.err
