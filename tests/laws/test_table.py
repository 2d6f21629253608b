"""Tables of runs: column names, the third of N, D and C, and mistakes."""

import json

import pytest

from scalelab.errors import BadInput
from scalelab.laws.table import parse_columns, read_table


def written(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_two_of_three_give_the_third(tmp_path):
    texts = {"D": "N,C,loss\n100,6e6,2.5\n", "N": "D,C,loss\n1e4,6e6,2.5\n", "C": "N,D,loss\n100,1e4,2.5\n"}
    for derived, text in texts.items():
        table = read_table(written(tmp_path, text))
        (row,) = table.rows
        assert (row["N"], row["D"], row["C"], row["val_loss"]) == (100, 1e4, 6e6, 2.5)
        assert table.derived.startswith(f"{derived} = ")
    all_three = read_table(written(tmp_path, "N,D,C,loss\n100,1e4,7e6,2.5\n"))
    assert all_three.rows[0]["C"] == 7e6 and all_three.derived == ""


def test_columns_by_their_own_names(tmp_path):
    path = written(tmp_path, "Model Size,tokens,final,run\n1e6,2e7,3.1,x\n")
    table = read_table(path, parse_columns("N=Model Size,D=tokens,loss=final"))
    assert table.rows == [{"name": "row 1", "N": 1e6, "D": 2e7, "C": 1.2e14, "val_loss": 3.1}]
    assert table.n_convention == "column 'Model Size'"


def test_json_lines_equal_csv(tmp_path):
    lines = [{"name": "a", "N": 100, "D": 1e4, "loss": 2.5, "status": "done"}, {"N": 200, "D": 1e4, "loss": None}]
    first = read_table(written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "runs.jsonl"))
    second = read_table(written(tmp_path, "name,N,D,loss,status\na,100,1e4,2.5,done\n,200,1e4,,\n"))
    assert first == second
    assert first.rows[1]["val_loss"] is None and first.rows[0]["status"] == "done"


def test_a_table_of_our_own_is_read_as_it_is(tmp_path):
    path = written(tmp_path, "name,status,role,N,D,C,val_loss\nr,diverged,fit,100,1e4,7e6,nan\n")
    (row,) = read_table(path).rows
    assert row["status"] == "diverged" and row["role"] == "fit" and row["C"] == 7e6


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("N,D,loss\n", "", "holds no rows"),
        ("params,D,loss\n1,2,3\n", "", "--columns=N=params,D=tokens,loss=val_loss"),
        ("N,D\n1,2\n", "", "say which hold the loss"),
        ("params,D,loss\n1,2,3\n", "N=parms", "did you mean 'params'"),
        ("N,D,loss\n1,2,3\n", "M=N", "not FIELD=COLUMN"),
        ("N,D,loss\n1,2,3\n", "N", "not FIELD=COLUMN"),
        ("N,D,loss\n1,2,3\n1,two,3\n", "", r"row 2, 'D': 'two' is not a number"),
    ],
)
def test_mistakes_are_one_line(tmp_path, text, columns, said):
    with pytest.raises(BadInput, match=said) as refusal:
        read_table(written(tmp_path, text), parse_columns(columns))
    assert "\n" not in str(refusal.value)


def test_other_files_are_no_tables(tmp_path):
    with pytest.raises(BadInput, match="anything else must be a folder of runs"):
        read_table(written(tmp_path, "x", "runs.txt"))
    with pytest.raises(BadInput, match="line 2 is not JSON"):
        read_table(written(tmp_path, '{"N": 1}\n{"N"\n', "runs.jsonl"))
