import io

import pytest
from rich.console import Console

from equipoise.report import formats, numbers, tables
from tests.report import folders


def printed(renderable, width=200):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_comparison_holds_the_records_numbers(five):
    table = {row[0]: row[1:] for row in rows_of(tables.markdown(five))}
    for run in five[:-1]:
        summary, cells = run.outcome.summary, [cell.strip("*") for cell in table[run.outcome.label]]
        assert cells[0] == f"{100 * summary['mean']:.1f}%"
        assert cells[1] == f"{100 * summary['worst20']:.1f}%"
        assert cells[2].startswith(f"{100 * run.outcome.worst_estimate:.1f}% (")
        assert f"{100 * run.outcome.worst_low:.1f}" in cells[2]
        assert cells[3] == f"{100 * summary['best20']:.1f}%"
        assert cells[4] == f"{100 * summary['min']:.1f}%"
        assert cells[8] == "100"


def test_the_best_of_each_column_is_marked(five):
    header, _, *rows = rows_of(tables.markdown(five))
    bold = {name: [row[0] for row in rows if row[k].startswith("**")] for k, name in enumerate(header)}
    assert bold["average"] == ["SCAFFOLD"]
    assert bold["worst 20%"] == bold["corrected (bounds)"] == bold["worst client"] == bold["std"] == ["SCAFF-PD"]
    assert bold["bytes per client"] == ["FedAvg", "q-FedAvg"]  # a tie; the unfinished run sent less, and does not count
    assert bold["rounds"] == bold["time"] == []  # nothing to win; all alike


def test_lower_is_better(regression):
    header, _, *rows = rows_of(tables.markdown(regression))
    column = header.index("worst client")
    assert [row[column].strip("*") for row in rows] == [f"{run.outcome.summary['max']:.4g}" for run in regression]
    assert rows[1][column].startswith("**")
    assert "lower is better" in tables.markdown(regression)


def test_one_run_has_nothing_to_win(alone):
    assert "**" not in tables.markdown(alone)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_digit(five, width):
    text = printed(tables.comparison(five), width)
    assert "…" not in text
    for run in five[:-1]:
        for value in (run.outcome.worst_low, run.outcome.worst_high, run.outcome.summary["mean"]):
            assert f"{100 * value:.1f}" in text


def test_the_clients(five):
    text = printed(tables.per_client(*five[:2]))
    lines = [line for line in text.splitlines() if "hospital" in line]
    run = numbers.reported(five)[0]
    assert len(lines) == 12
    assert [line.split("  ")[0].strip() for line in lines] == [f"hospital {i + 1}" for i in run.worst_first()]
    for i, line in zip(run.worst_first(), lines, strict=True):
        assert formats.percent(run.values[i]) in line
        assert formats.interval(run.low[i], run.high[i], formats.percent) in line


def test_only_the_worst_of_many_clients_are_listed(thousand):
    text = tables.per_client_markdown(thousand[0])
    assert len(rows_of(text)) == 2 + tables.MOST_CLIENTS
    assert "the 50 clients of 1,000 that FedAvg serves worst" in text


def test_a_client_without_a_score(regression):
    assert [row[2] for row in rows_of(tables.per_client_markdown(*regression)) if row[0] == "hospital 4"] == ["–"]


def test_other_clients_get_another_table(five, regression):
    assert tables.markdown([five[0], regression[0]]).count("| method |") == 2
    assert printed(tables.comparison([five[0], regression[0]])).count("method") == 2
    assert printed(tables.per_client(five[0], regression[0])).count("client  ") == 2


def test_names_are_only_names(tmp_path):
    names = ["a|b", "[red]c", "**d**", "e\nf", "<b>"]
    run = folders.write(tmp_path, "[bold]x[/bold] | y", n=5, names=names)
    assert "[bold]x[/bold] | y" in printed(tables.comparison([run]))
    assert "[red]c" in printed(tables.per_client(run))
    text = tables.markdown([run]) + tables.per_client_markdown(run)
    assert {len(row) for row in rows_of(text.replace("\\|", ""))} == {13, 3}
    for name in (r"a\|b", r"\[red\]c", r"\*\*d\*\*", "e f", r"\<b\>"):
        assert name in text
