"""One line of progress: numbers stay whole at every width, and a time left needs a pace."""

import itertools

import pytest

from scalelab.cli.lines import Pace, draw_bar, fit_line, format_seconds

PARTS = [
    (0, "step 1234/56789"),
    (1, "loss 2.431"),
    (3, "val 2.502"),
    (5, "180,123 tokens/s"),
    (4, "1:20"),
    (2, "0:40 left"),
]


class Clock:
    """A clock that a test turns by hand."""

    seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_a_narrow_terminal_leaves_out_whole_parts(width):
    """Seen at 60 columns: `12…/567…  loss 2.…`."""
    line = fit_line("a-run-with-a-long-name", PARTS, width)
    title, *texts = line.split("  ")
    assert len(line) <= max(width, 6 + 2 + len("step 1234/56789"))
    assert set(texts) <= {text for _, text in PARTS} and texts[0] == "step 1234/56789"
    assert title == "a-run-with-a-long-name" or (title.endswith("…") and "a-run-with".startswith(title[:5]))


def test_what_matters_most_stays_longest():
    left = [fit_line("run", PARTS, width).split("  ")[1:] for width in range(90, 18, -1)]
    gone = dict.fromkeys(text for before, after in itertools.pairwise(left) for text in before if text not in after)
    assert list(gone) == ["180,123 tokens/s", "1:20", "val 2.502", "0:40 left", "loss 2.431"]


def test_the_bar_takes_only_what_is_left():
    assert draw_bar("x" * 50, 0.5, 60).plain == "x" * 50
    bar = draw_bar("x" * 50, 0.5, 71, ascii_only=True).plain
    assert bar == "#" * 10 + "." * 10 + " " + "x" * 50


def test_time_left_is_by_the_pace_since_it_began():
    clock = Clock()
    pace = Pace(clock)
    clock.seconds = 160.0  # compiling
    assert pace.describe(0.0) == ["1:00"] and pace.left_s(0.5) is None
    pace.begin(0.2)
    assert pace.left_s(0.2) is None
    clock.seconds = 170.0
    pace.begin(0.9)  # it has begun already
    assert pace.left_s(0.4) == pytest.approx(30) and pace.describe(0.4) == ["1:10", "0:30 left"]


@pytest.mark.parametrize("seconds, text", [
    (0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "1 d 01:01:01"),
])  # fmt: skip
def test_times_read_as_clocks_do(seconds, text):
    assert format_seconds(seconds) == text
