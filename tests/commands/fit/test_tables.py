"""`scalelab fit` on tables as people send them: formats, names, numbers, units; and own laws that fail."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from scalelab.__main__ import main
from tests.laws.examples import QUICKSTART_LIKE, study

N, D, LOSS = (np.asarray(values) for values in study(QUICKSTART_LIKE, 0.005))
N = np.round(N).astype(int)
PLAIN = [("params", "tokens", "val_loss"), *zip(N.tolist(), D.tolist(), LOSS.tolist(), strict=True)]


def text_of(rows, mark=","):
    return "".join(mark.join(map(str, row)) + "\n" for row in rows)


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--bootstrap=0", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys, *argv):
    assert main(["fit", *map(str, argv), "--bootstrap=0"]) == 0
    return capsys.readouterr().out


def refused(capsys, *argv):
    assert main(["fit", *map(str, argv), "--bootstrap=0"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
    return streams.err


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text_of(PLAIN))
    return path


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """The fitted parameters of the plain table."""
    path = tmp_path_factory.mktemp("plain")
    (path / "t.csv").write_text(text_of([("N", "D", "loss"), *PLAIN[1:]]))
    assert main(["fit", f"{path}/t.csv", "--bootstrap=0", f"--json={path}/fit.json"]) == 0
    return json.loads((path / "fit.json").read_text())["params"]


def test_a_german_table_gives_the_plain_tables_numbers(capsys, tmp_path, params):
    rows = [
        (f"{n:,}".replace(",", "."), f"{d:.17g}".replace(".", ","), f" {loss:.17g} ".replace(".", ","))
        for n, d, loss in PLAIN[1:]
    ]
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text_of([(" Model Size ", "Tokens", "Final-Loss "), *rows], ";").encode())
    result = answer(capsys, path)
    assert result["params"] == params
    assert result["columns"] == {"N": "Model Size", "D": "Tokens", "loss": "Final-Loss"}
    assert "columns chosen by their names: --columns='N=Model Size,D=Tokens,loss=Final-Loss'" in result["read_as"][0]
    assert f"'{rows[0][0]}' read as {N[0]} in column 'Model Size': {len(N)} cells" in result["read_as"][1]


@pytest.mark.full
def test_suffixes_tabs_and_gzip(capsys, tmp_path, params):
    rows = [(f"{n / 1e6!r}M", f"{d!r}", loss) for n, d, loss in PLAIN[1:]]
    path = tmp_path / "runs.tsv.gz"
    path.write_bytes(gzip.compress(text_of([PLAIN[0], *rows], "\t").encode()))
    output = printed(capsys, path)
    assert f"'{rows[0][0]}' read as {N[0]} in column 'params': {len(N)} cells\n" in output
    assert f"{params['alpha']:.4g}"[:5] in output
    lines = "".join(json.dumps({"params": n, "tokens": d, "val_loss": loss}) + "\n" for n, d, loss in PLAIN[1:])
    (tmp_path / "runs.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert answer(capsys, tmp_path / "runs.jsonl.gz")["params"] == params


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params;tokens;loss\n50,000;60,000;3\n", "'50,000' has two meanings: a decimal comma, or thousands?"),
        ("params;tokens;loss\n1,5e9;2.5e9;3\n", "'1,5e9' has two meanings"),
        ("params,tokens,loss\n50M,1B,2.5k\n", "'2.5k' is not a number: k, M, B and T are read in N, D, C, U only"),
        (
            "params,n_params,tokens,loss\n1,2,3,4\n",
            "'params' and 'n_params' both fit N; choose one: --columns='N=params'",
        ),
        ("N,tokens,Eval Loss,nll\n1,2,3,4\n", "columns 'Eval Loss' and 'nll' both fit loss; choose one"),
        ("N,train tokens,total-tokens,nll\n1,2,3,4\n", "columns 'train tokens' and 'total-tokens' both fit D"),
        ("params,tokens,loss\n1,234,567,1e9,3\n", "row 1 has 5 cells, the header 3"),
        ("x,D,loss\n1,2,3\n", "name them: --columns=N=params,D=tokens,loss=val_loss"),
        ("loss,N,D\n2,log(N),3\n", "'log(N)' is not a number"),
    ],
)
def test_what_has_two_meanings_is_refused(capsys, tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    assert message in refused(capsys, tmp_path / "t.csv")


def test_text_in_a_column_of_a_usual_name_is_not_chosen(capsys, tmp_path, params):
    rows = [(("params", "compute", "n", "tokens", "loss")), *(("kaplan", "8x H100", *row) for row in PLAIN[1:])]
    (tmp_path / "t.csv").write_text(text_of(rows))
    result = answer(capsys, tmp_path / "t.csv")
    assert result["params"] == params and result["columns"] == {"N": "n", "D": "tokens", "loss": "loss"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "question", "mend"),
    [
        (lambda n, d, loss: (float(np.log(n)), d, loss), "N is ", "N=exp(params)"),
        (lambda n, d, loss: (n / 1e6, d, loss), "N has a median of", "N=params*1e6"),
    ],
)
def test_odd_units_are_questioned_and_mended_by_columns(capsys, tmp_path, params, change, question, mend):
    path = tmp_path / "t.csv"
    path.write_text(text_of([PLAIN[0], *(change(*row) for row in PLAIN[1:])]))
    assert main(["fit", str(path), "--bootstrap=0"]) in (0, 2)  # a table of such units may identify no law
    streams = capsys.readouterr()
    assert question in streams.out + streams.err and mend.replace("params", "COLUMN") in streams.out + streams.err
    mended = answer(capsys, path, f"--columns={mend}")
    assert mended["params"] == pytest.approx(params, rel=1e-6)
    assert not [finding for finding in mended["design"] if finding["kind"] == "units"]


@pytest.mark.full
def test_flops_of_other_units_are_shown_and_in_json(capsys, tmp_path):
    rows = [(*PLAIN[0], "compute"), *((n, d, loss, 6 * n * d / 1e15) for n, d, loss in PLAIN[1:])]
    (tmp_path / "t.csv").write_text(text_of(rows))
    result = answer(capsys, tmp_path / "t.csv")
    (finding,) = [finding for finding in result["design"] if finding["kind"] == "units"]
    assert "C is 1e-15 times 6ND at the median: is C in PFLOPs? If so, --columns='C=COLUMN*1e+15'" in finding["text"]
    mended = answer(capsys, tmp_path / "t.csv", "--columns=C=compute*1e15")
    assert mended["flops_per_param_token"] == pytest.approx(6) and mended["params"] == result["params"]


def test_bits_by_name_and_both_other_approaches(capsys, tmp_path):
    (tmp_path / "t.csv").write_text(text_of([("params", "tokens", "val bits"), *PLAIN[1:]]))
    question = "design: the loss is column 'val bits', by its name bits, not nats: --columns='loss=val bits*0.693147'"
    for approach in ("--approach=3", "--approach=2"):
        assert question in printed(capsys, tmp_path / "t.csv", "--columns=loss=val bits", approach), approach


@pytest.mark.full
def test_a_grid_has_columns_of_its_own(capsys, table, tmp_path):
    def grid(header):
        (tmp_path / "grid.csv").write_text(f"{header}\n1e4,1e8\n1e5,1e8\n1e5,1e9\n")
        return [f"--grid={tmp_path}/grid.csv", "--next-runs=1", "--budget-flops=1e16", "--determine=beta"]

    same = answer(capsys, table, *grid("params,tokens"), "--columns=N=params,D=tokens")["next"]
    assert same["read_as"] == []
    for header, columns in (("size,budget", ["--grid-columns=N=size,D=budget"]), ("Model Size,train_tokens", [])):
        other = answer(capsys, table, *grid(header), "--columns=N=params,D=tokens", *columns)["next"]
        assert [other[key] for key in ("names", "sd_after", "flops")] == [
            same[key] for key in ("names", "sd_after", "flops")
        ]
    assert "columns chosen by their names: --columns='N=Model Size,D=train_tokens'" in other["read_as"][0]
    mistake = refused(capsys, table, *grid("size,budget"))
    assert "grid.csv has no N, D" in mistake and "name them: --grid-columns=N=params,D=tokens" in mistake
    mistake = refused(capsys, table, *grid("size,budget"), "--grid-columns=N=sise,D=budget")
    assert "--grid-columns: grid.csv has no column 'sise'; did you mean 'size'?" in mistake
    assert "--grid-columns names the columns of --grid" in refused(capsys, table, "--grid-columns=N=size")
    config = pathlib.Path(__file__).parents[3] / "configs" / "lr_seeds.py"
    options = [f"--grid={config}", "--next-runs=1", "--budget-flops=1e20", "--grid-columns=N=size"]
    assert "--grid-columns names columns of a table" in refused(capsys, table, *options)


LAWS = '''
import jax.numpy as jnp
from scalelab.laws import Coefficient, Exponent

def annealed(S1, S2, *, E: Coefficient, A: Coefficient, B: Coefficient, alpha: Exponent):
    """L = E + A/S1^alpha - B S2"""
    return E + A / S1**alpha - B * S2

def branched(S1, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    if alpha > 0.5:
        return E + A / S1
    return E + A / S1**alpha

def undefined(S1, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / S1**alpha + jnp.log(1.0 - 0 * S1 - 2.0)

def negative(S1, *, A: Coefficient, alpha: Exponent):
    return -A / S1**alpha - 1.0
'''


@pytest.fixture
def own_laws(tmp_path, monkeypatch):
    (tmp_path / "laws_of_mine.py").write_text(LAWS)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    S1, S2 = np.exp(rng.uniform(np.log([[0.1], [1e-3]]), np.log([[30.0], [10.0]]), (2, 24)))
    loss = (2.6 + 0.5 / S1**0.5 - 0.05 * S2) * np.exp(rng.normal(0.0, 1e-4, 24))
    (tmp_path / "t.csv").write_text(
        text_of([("S1", "S2", "loss"), *zip(*map(np.ndarray.tolist, (S1, S2, loss)), strict=True)])
    )
    return tmp_path / "t.csv"


@pytest.mark.full
def test_a_law_with_a_subtracted_term(capsys, own_laws):
    result = answer(capsys, own_laws, "--law=laws_of_mine:annealed")
    assert result["params"] == pytest.approx({"E": 2.6, "A": 0.5, "B": 0.05, "alpha": 0.5}, rel=0.01)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ("branched", "laws_of_mine.py, line 10, in branched: Python 'if' on a traced value; use jnp.where"),
        ("undefined", "law 'undefined' is not a finite number at 24 of 24 rows, whatever its parameters"),
        ("negative", "law 'negative' is not positive, whatever its parameters"),
    ],
)
def test_a_law_that_cannot_be_fitted_ends_in_one_line(capsys, own_laws, law, message):
    assert message in refused(capsys, own_laws, f"--law=laws_of_mine:{law}")


def test_a_refused_fit_says_how_the_table_was_read(capsys, tmp_path):
    path = tmp_path / "few.csv"
    path.write_text(text_of(PLAIN[:4]))
    for options in ([], ["--approach=1"]):
        assert "as read: few.csv: columns chosen by their names: --columns=" in refused(capsys, path, *options)
