from __future__ import annotations

import random
import re
from fractions import Fraction
from textwrap import dedent

from pytest_core_rollouts.report.cells import escape, width
from pytest_core_rollouts.report.markdown import MAX_TASKS, markdown, terminal
from pytest_core_rollouts.results.number_text import between, decimal
from pytest_core_rollouts.results.summary import summarize
from pytest_core_rollouts.text import reward_text
from tests.support.rows import run
from tests.support.tables import rows

BUNDLED = ("failed-logins", "inventory-bug", "orders-json", "salaries-sqlite", "sales-by-region")


def cells(line: str) -> list[str]:
    """The cells of a table's line, as GitHub cuts them: at each pipe that has no backslash before it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text: str) -> list[list[list[str]]]:
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [[cells(line) for line in block] for block in blocks if block[0].startswith("|")]


def test_mean_of_a_metric_is_over_tasks_and_says_if_rollouts_lack_it() -> None:
    rows = [
        *run({"A": (1.0,) * 3}, agents=2, metrics={"style": 0.3, "|odd|": -2}),
        *run({"B": (0.0, 1.0)}, agents=2, metrics={"style": 0.6}),
        *run({"A": (1.0, None)}, agents=2, harness="claude_sdk", metrics={"lines": 1_234_567}),
    ]
    summary = summarize(rows)
    [table] = [one for one in tables(markdown(summary)) if one[0][0] == "mean of metric"]
    assert table[0] == ["mean of metric", "claude_sdk", "codex"]
    assert table[2:] == [["lines", "1.235e+06", "-"], ["style", "-", "0.45"], [r"\|odd\|", "-", "-2 [3/5]"]]
    assert "| style" in terminal(summary)
    many = run({"A": (1.0,)}, metrics={f"m{number:02}": number for number in range(40)})
    assert "8 more metrics." in markdown(summarize(many))


def test_the_report_of_a_run_with_faults() -> None:
    rows = [
        *run({"A": (1.0, None, None, None), "B": (None,) * 4}, agents=2, duration_s=2.04),
        *run({"A": (1.0,) * 4, "B": (1.0, 0.0, "timeout", 0.0)}, harness="claude_sdk", agents=2, duration_s=25.66),
    ]
    assert markdown(summarize(rows)) == dedent(
        """\
        16 rollouts: 2 tasks, 4 samples each

        | harness    | model   | rollouts | graded | mean reward | 95% interval | tasks solved | errors/timeouts | mean duration (s) | tokens |
        | ---------- | ------- | -------: | -----: | ----------: | -----------: | -----------: | --------------: | ----------------: | -----: |
        | claude_sdk | default |        8 |    8/8 |       0.625 |  0.004-0.999 |          2/2 |             0/1 |              25.7 |      - |
        | codex      | default |        8 |    1/8 |       1.000 |            - |          1/2 |             7/0 |               2.0 |      - |

        - agent codex: valid 1/8, errors 7. Had these all failed / all passed:
          mean reward 0.125 / 1.000, tasks solved 1 / 2 of 2.

        - 7 x error: no reason given

        | estimate (95% interval) |          claude_sdk |             codex |
        | ----------------------- | ------------------: | ----------------: |
        | pass@1                  | 0.625 (0.004-0.999) | 1.000 [1/2 tasks] |
        | pass@2                  | 0.750 (0.010-0.999) |               n/a |
        | pass@4                  | 1.000 (0.012-1.000) |               n/a |
        | pass^2                  | 0.500 (0.002-0.998) |               n/a |
        | pass^4                  | 0.500 (0.002-0.998) |               n/a |

        - fewer than 4 samples of codex with a reward: A 1, B 0

        | task (solved/graded) | claude_sdk |    codex |
        | -------------------- | ---------: | -------: |
        | A                    |        4/4 | 1/1 of 4 |
        | B                    |        1/4 | 0/0 of 4 |

        Why rewards are below 1:

        - 2 x B by claude_sdk: the grader gave 0
        - 1 x B by claude_sdk: over the limit

        - groups of claude_sdk: 2 of 2 complete; 1 with a signal (rewards differ), 1 all 1
        - groups of codex: 0 of 2 complete; 1 all 1, 1 without a reward

        A group is the samples of one task by one agent. Methods that learn from groups (such as GRPO) compare
        a reward with its group's mean: where all rewards are the same, nothing is learned.
        """  # noqa: E501
    )


def test_tasks_with_fewer_samples_are_listed_apart() -> None:
    summary = summarize(run({"a": (1.0, 0.0, 0.0, 0.0), "b": (1.0,), "c|d": (1.0, 0.0, 1.0, None)}))
    for text in (markdown(summary), terminal(summary)):
        assert "- fewer than 4 samples with a reward: b 1, c\\|d 3\n" in text
    assert "fewer than" not in markdown(summarize(run({"a": (1.0, 0.0), "b": (0.0, 0.0)})))


def test_a_task_that_was_changed_between_merged_runs_is_named() -> None:
    rows = [
        *run({"a": (1.0,), "b": (1.0,)}, run_id="r1", grading_digest="1"),
        *run({"a": (0.0,)}, run_id="r2", grading_digest="2"),
    ]
    for text in (markdown(summarize(rows)), terminal(summarize(rows))):
        assert "- task changed between runs, counted as one: a\n" in text
    assert "changed" not in markdown(summarize(rows[:2]))


def test_a_task_beyond_agents_that_half_of_the_samples_solve_is_gained() -> None:
    results: dict[str, tuple[float | str | None, ...]] = {
        "half": (1.0, 1.0, 0.0, None),
        "less": (1.0, 0.0, 0.0),
        "cut short": (1.0, "not run", "not run"),
    }
    summary = summarize(run(results, samples=4, model="m", settings={"xfail": "too hard"}))
    for text in (markdown(summary), terminal(summary)):
        gained = [line for line in text.splitlines() if "gained" in line]
        assert gained == ["- gained: half by codex/m: 2 of 4 samples pass; its xfail can go"]
    assert "gained" not in markdown(summarize(run(results)))


def test_a_run_cut_short_says_so_first() -> None:
    rows = run({"A": (1.0, 1.0, 0.0, 1.0), "B": (0.0, *["not run"] * 3)}, agents=2)
    text = markdown(summarize(rows))
    assert text.startswith("rows 5 of 16 planned\n")
    [head, _, line] = tables(text)[0]
    assert dict(zip(head, line, strict=True))["not run"] == "3"
    assert "valid 5/8, not run 3." in text
    assert markdown(summarize([], planned=16)) == "rows 0 of 16 planned\n"


@rows(
    ("value", "shown"),
    [
        (Fraction(2499, 2500), "0.999"),
        (0.99951, "0.999"),
        (Fraction(1, 2500), "0.001"),
        (1e-12, "0.001"),
        (Fraction(0), "0.000"),
        (Fraction(1), "1.000"),
        (Fraction(2, 3), "0.667"),
        (0.0, "0.000"),
        (None, "-"),
    ],
)
def test_only_all_prints_as_one_and_only_none_as_zero(value: Fraction | float | None, shown: str) -> None:
    assert decimal(value) == shown


def test_ends() -> None:
    assert between((0.0, 0.99999)) == "0.000-0.999"
    assert between((Fraction(1, 8), None)) == between(None) == "-"


HOSTILE = [
    "a|b|c",
    "x\n|y",
    "x\r\n\r\n| y | z |",
    "<script>alert(1)</script>",
    "`code` ``|``",
    "\\|",
    "a\\",
    "![i](http://evil.example/x.png) [l](javascript:x) <http://evil.example>",
    "**bold** _it_ ~~gone~~ &lt;b&gt; &#60;",
    "\x1b[31mred\x1b[0m \x00\x07\x9b",
    "\u202egnp.exe\u2066 \u200b\ufeff",
    "a\u2028b\u2029c\u0085d\x0be",
    "\ud800 lone",
    "",
    " ",
    "x" * 10_000,
    "漢字" * 500,
]


@rows("name", HOSTILE)
def test_text_of_others_stays_in_its_cell_and_does_nothing(name: str) -> None:
    rows = [*run({"A": (1.0, None), name: (0.0, 1.0)}, harness=name, model=name, agent={"name": name}, error=name)]
    for text in (markdown(summarize(rows)), terminal(summarize(rows))):
        assert text.encode()  # no lone surrogate
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200b\u202a-\u202e\u2066-\u2069\ufeff]", text)
        for rendered in tables(text):
            assert len({len(line) for line in rendered}) == 1
        shown = re.sub(r"\\.", "", text)  # what is left has a meaning in Markdown
        assert not re.search(r"[<>`*\[\]~]", shown.replace("[1/2 tasks]", "").replace(" [", " "))
        assert "http://" not in text


def test_names_that_mean_no_harm_are_left_readable() -> None:
    for name in ("claude_sdk", "openai/gpt-5:free", "MiniMax-M2.7", "sql/joins", "naïve 漢字 (v2)"):
        assert escape(name) == name


def test_long_names_keep_both_ends_and_bounded_width() -> None:
    assert escape("a" * 100 + "b" * 100) == "a" * 34 + "..." + "b" * 34
    assert width(escape("漢" * 100)) <= 72


def test_columns_line_up_under_wide_and_combining_characters() -> None:
    assert (width("ab"), width("漢字"), width("e\u0301"), width("ｆ")) == (2, 4, 1, 2)
    text = markdown(summarize(run({"漢字": (1.0,), "e\u0301": (1.0,), "plain": (0.0,)})))
    for block in text.split("\n\n")[1:]:
        assert len({width(line) for line in block.splitlines()}) == 1


def test_a_terminal_of_80_columns_is_not_overrun() -> None:
    rows = [
        *run(dict.fromkeys(BUNDLED, (1.0, 0.0, 1.0, "timeout")), harness="claude_sdk", agents=2, duration_s=25.7),
        *run(dict.fromkeys(BUNDLED, (1.0, 0.0, None, 0.0)), agents=2, duration_s=17.6),
    ]
    text = terminal(summarize(rows))
    assert max(map(width, text.splitlines())) <= 80
    head, _, *body = tables(text)[0]
    assert head[:3] == ["harness", "graded", "mean reward"]
    assert {"tasks solved", "errors", "timeouts"} <= set(head)
    assert [line[0] for line in body] == ["claude_sdk", "codex"]


@rows("agents", [2, 4, 8])
@rows("columns", [80, 120, 200])
def test_every_line_fits_the_terminal(agents: int, columns: int) -> None:
    names = ("login", "sql/joins-over-three-tables-with-nulls", "web", "a" * 100)
    results: tuple[tuple[float | str | None, ...], ...] = ((0.0, "timeout", 1.0), (1.0, 0.0, None))
    rows = [
        row
        for number in range(agents)
        for row in run(
            dict.fromkeys(names, results[number % 2]),
            model=f"claude-{number}-sonnet-20260901",
            harness="claude_sdk",
            agents=agents,
            metrics={"style": number / 7, "coverage": 0.5},
        )
    ]
    for whole in (False, True):
        text = terminal(summarize(rows), columns, whole=whole)
        assert max(map(width, text.splitlines())) <= columns, text
        assert len(tables(text)) >= 3
    [estimates] = [one for one in tables(text) if one[0][0].startswith("estimate")]
    assert "pass@1" in str(estimates)
    assert "agents are numbered as the first table lists them" in terminal(summarize(rows), 80)


def test_more_than_two_agents_are_ranked_in_a_terminal() -> None:
    rows = [
        row
        for number, reward in enumerate((0.2, None, 0.9, 0.5))
        for row in run({"A": (reward,)}, model=str(number), agents=4)
    ]
    ranked = [line[1] for line in tables(terminal(summarize(rows)))[0][2:]]
    assert ranked == ["2", "3", "0", "1"]
    assert [line[1] for line in tables(markdown(summarize(rows)))[0][2:]] == ["0", "1", "2", "3"]


def test_a_wide_terminal_shows_what_the_file_shows() -> None:
    summary = summarize(run({"A": (1.0, 0.0)}))
    assert terminal(summary, 200, whole=True).split() == markdown(summary).split()


def test_agent_files_are_named_where_harness_and_model_do_not_tell_them_apart() -> None:
    rows = [*run({"A": (1.0,)}, agent={"name": "short"}), *run({"A": (0.0,)}, agent={"name": "long"})]
    head, _, *body = tables(markdown(summarize(rows)))[0]
    assert head[0] == "agent"
    assert [line[0] for line in body] == ["long", "short"]


def test_unknown_usage_is_a_dash_and_a_partly_known_one_a_floor() -> None:
    def tokens(*usages: dict[str, int] | None) -> str:
        rows = [row for n, usage in enumerate(usages) for row in run({f"t{n}": (1.0,)}, usage=usage)]
        head, _, line = tables(markdown(summarize(rows)))[0]
        return dict(zip(head, line, strict=True))["tokens"]

    assert tokens(None, None) == "-"
    assert tokens({"total_tokens": 7}, {"total_tokens": 5}) == "12"
    assert tokens({"total_tokens": 7}, None) == "7+"


def test_of_many_tasks_those_that_were_not_always_solved_are_shown() -> None:
    results = {f"t{n:03}": (1.0, float(n % 20 > 0)) for n in range(200)}
    text = markdown(summarize(run(results)))
    assert [line[0] for line in tables(text)[-1][2:]] == [f"t{n:03}" for n in range(0, 200, 20)]
    assert "\n190 more tasks solved by every rollout.\n" in text
    text = markdown(summarize(run({f"t{n:03}": (0.0,) for n in range(MAX_TASKS + 3)})))
    assert "\n0 more tasks solved by every rollout, 3 more not.\n" in text
    assert text.endswith("\n- 1 x t049: the grader gave 0\n- and 3 more reasons\n")


def test_the_same_rows_give_the_same_bytes_in_whatever_order_they_were_written() -> None:
    source = random.Random(3)
    results = {name: [source.choice([0.0, 1.0, 0.3, None]) for _ in range(4)] for name in BUNDLED}
    rows = [*run(results, agents=2, duration_s=0.1), *run(results, harness="mcode", agents=2, duration_s=0.7)]
    expected = markdown(summarize(rows)), terminal(summarize(rows))
    for _ in range(10):
        source.shuffle(rows)
        assert (markdown(summarize(rows)), terminal(summarize(rows))) == expected


@rows(
    ("reward", "text"),
    [
        (1.0, "1"),
        (0.0, "0"),
        (0.5, "0.5"),
        (1 / 3, "0.333333"),
        (sum([0.1] * 10), "0.9999999999999999"),
        (1e-9, "1e-09"),
    ],
)
def test_a_reward_reads_as_one_only_where_it_is_one(reward: float, text: str) -> None:
    assert reward_text(reward) == text
