"""Tables of runs: column names, the third of N, D and C, and mistakes."""

import csv
import json

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from scalelab.errors import BadInput
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.columns import known_fields, parse_columns
from scalelab.laws.read.table import read_table

QUIET = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


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
    (row,) = table.rows
    result = {key: row[key] for key in ("name", "N", "D", "C", "val_loss")}
    assert result == {"name": "row 1", "N": 1e6, "D": 2e7, "C": 1.2e14, "val_loss": 3.1}
    assert row["run"] == "x"  # the table's own columns stay: --where and --cluster may name them
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
    ("text", "columns", "message"),
    [
        ("N,D,loss\n", "", "holds no rows"),
        ("size,D,loss\n1,2,3\n", "", "--columns=N=params,D=tokens,loss=val_loss"),
        ("N,D\n1,2\n", "", "has no loss among its columns N, D; name them: --columns=N=params,D=tokens,loss=val_loss"),
        ("N,d,loss\n1,2,3\n", "", "did you mean 'd'"),
        ("N,loss\n1,2\n", "", r"has no D \(two of N, D, C give the third\)"),
        ("params,D,loss\n1,2,3\n", "N=parms", "did you mean 'params'"),
        ("params,D,loss\n1,2,3\n", "N=parms*1e6,loss=loss", r"paste --columns='N=params\*1e6,loss=loss'"),
        ("N,D,logs\n1,2,3\n", "loss=log(log)", r"paste --columns='loss=log\(logs\)'"),
        ("N,D,e1\n1,2,3\n", "loss=e*1e-3", r"paste --columns='loss=e1\*1e-3'"),
        ("params,train_toks,final_l\n1,2,3\n", "", "these hold them, paste --columns=D=train_toks,loss=fin"),
        ("size,train_toks,loss\n1,2,3\n", "N=size", "these hold them, paste --columns=N=size,D=train_toks"),
        ("params,batch_tokens,loss\n1,2,3\n", "", "name them: --columns=N=params,D=tokens"),  # of a batch: no guess
        ("N,D,loss\n1,2,3\n", "X=N", "not FIELD=COLUMN; fields: N, D, C, M, loss"),
        ("N,D,loss\n1,2,3\n", "N=N,N=D", "names N twice"),
        ("N,D,loss\n1,2,3\n", "N", "not FIELD=COLUMN"),
        ("N,D,loss\n1,2,3\n1,two,3\n", "", r"row 2, 'D': 'two' is not a number"),
        ("N,D,loss\n1,2,3\n1,2,-3\n", "", r"row 2, 'loss': loss is -3; it must be finite and positive"),
        ("N,D,loss\n1,2,0\n", "", r"row 1, 'loss': loss is 0"),
        ("N,D,loss\n1,2,nan\n", "", r"row 1, 'loss': loss is nan"),
        ("N,D,loss,status\n1,2,inf,done\n", "", r"row 1, 'loss': loss is inf"),
        ("params,C,loss\n-1,2,3\n", "N=params", r"row 1, 'params': N is -1"),
    ],
)
def test_mistakes_are_one_line(tmp_path, text, columns, message):
    with pytest.raises(BadInput, match=message) as refusal:
        read_table(written(tmp_path, text), parse_columns(columns))
    assert "\n" not in str(refusal.value)


def test_other_files_are_no_tables(tmp_path):
    with pytest.raises(BadInput, match="anything else must be a folder of runs"):
        read_table(written(tmp_path, "x", "runs.txt"))


def test_what_a_law_needs_decides_what_is_read(tmp_path):
    path = written(tmp_path, "params,U,d_model,n_layers,N,D,loss\n7B,5,64,4,1e6,2e7,3.1\n")
    (row,) = read_table(path, {}, ("width", "depth", "N", "D", "loss")).rows
    assert (row["width"], row["depth"], row["N"]) == (64, 4, 1e6)
    (row,) = read_table(path, {}, ("C", "M", "loss")).rows
    assert row["C"] == 6 * 1e6 * 2e7 and row["M"] == 20
    (row,) = read_table(written(tmp_path, "N,C,loss\n7B,5,3\n"), {}, ("C", "loss")).rows  # N isn't asked for
    assert row["C"] == 5 and row["N"] == "7B"
    from_m = read_table(written(tmp_path, "N,M,loss\n1e6,20,3\n"))
    assert from_m.rows[0]["D"] == 2e7 and from_m.derived == "D = M N, C = 6ND"


def test_every_law_can_have_each_of_its_columns_named():
    for law in LAWS.values():
        text = ",".join(f"{field}=own {field}" for field in (*law.columns, law.target))
        assert set(parse_columns(text, known_fields(law))) == {*law.columns, law.target}


def test_a_subset_may_leave_out_what_would_be_refused(tmp_path):
    path = written(tmp_path, "params,tokens,nll,data set,kind\n1,2,3,a,x\n1,2,-1,b,y\n9,2,3,c,x\n")
    columns = {"N": "params", "D": "tokens", "loss": "nll"}
    table = read_table(path, columns, where=["loss > 0", "kind == 'x' and D/N < 1"])
    assert [row["name"] for row in table.rows] == ["row 3"] and table.left_out == 2
    with pytest.raises(BadInput, match="row 2"):
        read_table(path, columns)


def test_a_diverged_run_may_have_any_loss(tmp_path):
    path = written(tmp_path, "N,D,loss,status\n1,2,nan,diverged\n1,2,3,done\n1,2,-1,\n")
    with pytest.raises(BadInput, match="row 3"):
        read_table(path)
    assert len(read_table(path, where=["not N * loss < 0"]).rows) == 2


CELLS = st.one_of(st.floats(1e-9, 1e30), st.none())


@QUIET
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6))
def test_the_three_formats_give_the_same_rows(tmp_path, rows):
    lines = [dict(zip(("N", "C", "loss"), row, strict=True)) for row in rows]
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in ("N", "C", "loss")])
    parquet.write_table(pyarrow.Table.from_pylist(lines, schema), tmp_path / "t.parquet")
    written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "t.jsonl")
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("N", "C", "loss"), *rows])
    tables = [read_table(tmp_path / f"t.{kind}") for kind in ("csv", "jsonl", "parquet")]
    assert tables[0] == tables[1] == tables[2]
    for row, (N, C, loss) in zip(tables[0].rows, rows, strict=True):
        assert (row["N"], row["C"], row["val_loss"]) == (N, C, loss)
        assert row["D"] is None if N is None or C is None else row["D"] == C / (6 * N)


@QUIET
@given(cells=st.lists(st.text(max_size=6), min_size=3, max_size=3))
def test_any_cells_are_a_row_or_one_line_of_refusal(tmp_path, cells):
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("N", "D", "loss"), [cell.encode("utf-8", "replace").decode() for cell in cells]])
    try:
        (row,) = read_table(tmp_path / "t.csv").rows
    except BadInput as refusal:
        assert "\n" not in str(refusal)
    else:
        assert all(row[name] is None or row[name] > 0 for name in ("N", "D", "val_loss"))
