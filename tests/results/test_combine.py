"""Leaderboards of several folders and files in one table, and the numbers that are published as files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from support.hand_made import attack, card, corruption, first, run

from robust_interp.cli import main
from robust_interp.core.errors import UserError
from robust_interp.results import combine, export
from robust_interp.results.combine import gather
from robust_interp.results.folders import write
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

PUBLISHED = Path(__file__).parents[2] / "leaderboards"
PGD = attack("pgd", 2)


@pytest.fixture
def folder(tmp_path):
    """Makes a results folder of one run. `measured`: (card, perturbation, pattern of right ones)."""

    def make(name, *measured, **how):
        with Store(tmp_path / name) as store:
            run(store, measured, **how)
        return tmp_path / name

    return make


@pytest.fixture
def shown(capsys):
    """Runs `leaderboard`: exit status, standard output, standard error."""

    def show(*argv):
        status = main.main(["leaderboard", *map(str, argv)])
        return status, *capsys.readouterr()

    return show


def refused(outcome, *parts):
    status, out, err = outcome
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    for part in parts:
        assert str(part) in err


def entry(model, clean, pgd, n=10):
    return [(card(model), CLEAN, first(clean, n)), (card(model), PGD, first(pgd, n))]


HEAD = (
    "rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,agreement,improvement,"
    "{},corruption_source,source\n"
)
MINE = HEAD.format("clean,clean_std,pgd_1,pgd_1_std") + (
    "1,mine,quick,0.20-0.25,3,1,0.272,10,final,,,91.50,1.25,60.00,2.00,,measured\n"
    "2,yours,,,1,1,,10,final,,,80.00,,50.00,,,measured\n"
)


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.csv").write_text(MINE)
    return tmp_path / "mine.csv"


def test_folders_are_ranked_together_by_the_same_samples(folder):
    one = folder("one", *entry("a", 9, 3), *entry("b", 8, 5))
    two = folder("two", *entry("c", 10, 4))
    other = folder("other", *entry("d", 5, 5, n=5))
    board, title, _ = combine.gather([one, two, other])
    assert title == "digits"
    assert board[["n_examples", "rank", "model"]].values.tolist() == [
        [10, 1, "b"],
        [10, 2, "c"],
        [10, 3, "a"],
        [5, 1, "d"],
    ]


def test_folders_of_several_datasets_ask_for_one(tmp_path, folder, shown):
    one = folder("one", *entry("a", 9, 3))
    with Store(tmp_path / "two") as store:
        run(store, entry("a", 7, 2), dataset="cifar10")
    refused(shown(one, tmp_path / "two"), "cifar10, digits", "--dataset")
    board, title, _ = combine.gather([one, tmp_path / "two"], "cifar10")
    assert (title, board["clean"].tolist()) == ("cifar10", [70])
    # a file that is called after its dataset says as much as a folder
    refused(shown(one, PUBLISHED / "cifar10.csv"), "cifar10.csv", "for cifar10 by its name, not for digits")
    refused(shown(PUBLISHED / "digits.csv", PUBLISHED / "paper_cifar100.csv"), "cifar100", "digits")


@pytest.mark.slow
def test_a_file_alone_is_shown_as_it_is(mine, shown):
    assert shown(mine, "--format", "csv") == (0, MINE, "")
    assert shown("show", mine, "--format", "csv")[1] == MINE
    board = combine.read(mine)
    assert board["rank"].tolist() == [1, 2]
    assert board["params_m"].isna().tolist() == [False, True]


@pytest.mark.parametrize("column", ["subset", "preprocessing", "skipped"])
def test_an_empty_cell_on_the_images_is_missing_as_in_a_folder(mine, column):
    head, *lines = MINE.splitlines()
    lines = [
        f"{line.removesuffix(',measured')},{value},measured"
        for line, value in zip(lines, ("", 7), strict=True)
    ]
    mine.write_text("\n".join([f"{head.removesuffix(',source')},{column},source", *lines]))
    assert combine.read(mine)[column].isna().tolist() == [True, False]


def test_the_file_that_a_bench_writes_reads_as_it_was_written(folder, tmp_path):
    noise = [
        (card("a"), corruption(name, s), first(s)) for name in ("impulse_noise", "fog") for s in range(1, 6)
    ]
    board, _, _ = gather([folder("one", *entry("a", 9, 3), *noise, *entry("b", 8, 5))])
    write(tmp_path, pd.DataFrame(), board)
    path = tmp_path / "leaderboard.csv"
    assert export.to_csv(combine.read(path)).encode() == path.read_bytes()


def test_a_file_beside_anything_else_is_not_ranked_with_it(folder, mine, tmp_path):
    results = folder("one", *entry("a", 9, 3))
    board, title, _ = combine.gather([mine, results])
    assert title == "digits + mine.csv"
    assert board["model"].tolist() == ["a", "mine", "yours"]
    assert board["rank"].fillna(0).tolist() == [1, 0, 0]
    again = tmp_path / "again.csv"
    again.write_text(MINE)
    assert combine.gather([mine, again])[0]["rank"].isna().all()


def test_what_was_not_measured_here_is_never_ranked(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text(MINE.replace("2,yours", "1,yours").replace(",50.00,,,measured", ",70.00,,,paper"))
    assert combine.read(path)["rank"].fillna(0).tolist() == [1, 0]


def test_columns_of_all_sources_stand_in_the_leaderboards_order(folder, mine, tmp_path):
    worst = [(card("a"), CLEAN, first(9)), (card("a"), attack("fgsm", 16), first(4)), *entry("a", 9, 3)[1:]]
    results = folder("one", *worst, protocol="worst")
    path = tmp_path / "noise.csv"
    columns = ["shot_noise_3", "gaussian_noise", "noise", "worst_1", "pgd_8", "clean", "fgsm_2", "pgd_0.5"]
    values = ",".join("50.00," for _ in columns)
    path.write_text(
        HEAD.format(",".join(f"{name},{name}_std" for name in columns))
        + f",x,,,1,1,,10,final,,,{values},generated@0,measured\n"
    )
    board, _, _ = combine.gather([results, mine, path])
    assert [column for column in board if f"{column}_std" in board] == [
        "clean",
        "noise",
        "gaussian_noise",
        "shot_noise_3",
        "fgsm_2",
        "fgsm_16",
        "pgd_0.5",
        "pgd_1",
        "pgd_2",
        "pgd_8",
        "worst_1",
        "worst_2",
        "worst_16",
    ]
    assert board["pgd_1"].fillna(-1).tolist() == [-1, 60, 50, -1]


@pytest.mark.slow
def test_models_are_picked_by_name_and_glob_and_keep_their_rank(folder, shown):
    results = folder("one", *entry("in_a", 9, 3), *entry("in_b", 8, 5), *entry("plain", 7, 4))
    text = shown(results, "--models", "in_*", "--format", "csv")[1]
    assert [line.split(",")[:2] for line in text.splitlines()[1:]] == [["1", "in_b"], ["3", "in_a"]]
    text = shown(results, "--models", "plain,in_a", "--format", "csv")[1]
    assert [line.split(",")[:2] for line in text.splitlines()[1:]] == [["2", "plain"], ["3", "in_a"]]
    refused(shown(results, "--models", "plane"), "unknown model 'plane'; did you mean plain?")
    refused(shown(results, "--models", "x*"), "unknown model 'x*'")


@pytest.mark.slow
def test_any_column_sorts_and_what_is_empty_comes_last(folder, shown):
    results = folder(
        "one", *entry("b", 9, 3), *entry("a", 7, 5), *entry("d", 9, 4), (card("c"), PGD, first(9))
    )

    def order(column):
        text = shown(results, "--sort", column, "--format", "csv")[1]
        return "".join(line.split(",")[1] for line in text.splitlines()[1:])

    assert order("clean") == "dbac"  # the best first; of equals the one that stood first
    assert order("pgd_2") == "cadb"
    assert order("model") == "abcd"
    assert order("rank") == "cadb"
    refused(shown(results, "--sort", "pgd_3"), "unknown column 'pgd_3'; did you mean", "pgd_2")


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes_in_every_format(folder, mine, shown):
    results = folder("one", *entry("a", 9, 3))
    for name in ("table", "csv", "markdown", "latex", "json"):
        one, again = (shown(results, mine, "--format", name) for _ in range(2))
        assert one == again
        assert one[0] == 0
        assert "mine" in one[1]


LATEX = r"""\begin{tabular}{rllrrrr}
\toprule
rank & model & recipe & seeds & members & clean & \textbf{pgd\_1} \\
\midrule
1 & mine & quick & 3 & 1 & 91.5 $\pm$ 1.2 & 60.0 $\pm$ 2.0 \\
2 & yours\_50\%\textasciicircum{}2 &  & 1 & 1 & 80.0 & 50.0 \\
\bottomrule
\end{tabular}
"""


@pytest.mark.slow
def test_columns_are_chosen_by_name_and_glob_in_the_order_given(mine, shown):
    def head(*options, form="csv"):
        return shown(mine, *options, "--format", form)[1].splitlines()[0]

    assert head("--columns", "pgd_*,model") == "pgd_1,pgd_1_std,model"
    assert head("--columns", "model,*,clean").startswith("model,rank,recipe,lambda_init,seeds,")
    assert head("--columns", "clean,model", form="markdown") == "| clean | model |"
    assert head("--columns", "rank,pgd_1", form="markdown") == "| rank | **pgd_1** |"
    refused(shown(mine, "--columns", "pdg_1"), "unknown column 'pdg_1'; did you mean pgd_1?")
    refused(shown(mine, "--plain-numbers"), "--plain-numbers needs --format markdown or latex")


@pytest.mark.slow
def test_the_top_is_taken_after_sorting(mine, shown):
    models = ["--columns", "model", "--format", "csv"]
    assert shown(mine, "--sort", "pgd_1", "--top", "1", *models)[1] == "model\nmine\n"
    assert shown(mine, "--sort", "seeds", "--top", "1", *models)[1] == "model\nyours\n"
    assert shown(mine, "--top", "9", *models)[1] == "model\nmine\nyours\n"


@pytest.mark.slow
def test_a_column_that_no_line_fills_is_not_shown(mine, shown):
    heads = shown(mine, "--models", "yours")[1].splitlines()[1].split()
    assert heads == ["rank", "model", "seeds", "members", "clean", "pgd_1*"]  # without recipe
    heads = (
        shown(PUBLISHED / "robustbench.csv", "--dataset", "cifar10", "--top", "3")[1].splitlines()[1].split()
    )
    assert heads == ["model", "seeds", "members", "clean", "autoattack_l2_0.5", "external_l2_0.5"]


def test_a_table_that_is_wider_than_a_page_is_scaled_to_its_line(mine, shown):
    """Nine names of 9 to 15 letters do not fit 90 characters; two do."""
    wide = [f"pgd_{eps}.0625" for eps in range(1, 10)]
    header = ",".join(f"{name},{name}_std" for name in wide)
    mine.write_text(HEAD.format(header) + f",net,,,1,1,,10,final,,,{'50.00,,' * 9},measured\n")
    lines = shown(mine, "--format", "latex")[1].splitlines()
    assert lines[0] == r"\resizebox{\linewidth}{!}{%"
    assert lines[-1] == r"\end{tabular}}"
    lines = shown(mine, "--format", "latex", "--columns", "model,pgd_1.0625")[1].splitlines()
    assert (lines[0], lines[-1]) == (r"\begin{tabular}{lr}", r"\end{tabular}")


def test_latex_is_a_booktabs_table_with_everything_escaped(tmp_path, shown):
    path = tmp_path / "mine.csv"
    path.write_text(MINE.replace("yours", "yours_50%^2"))
    assert shown(path, "--format", "latex")[1] == LATEX


def test_a_name_of_two_lines_stays_in_its_row_of_markdown(tmp_path, shown):
    path = tmp_path / "mine.csv"
    path.write_text(MINE.replace("yours", '"your|s\nhere"'))
    lines = shown(path, "--format", "markdown")[1].splitlines()
    assert len(lines) == 4
    assert "| your&#124;s here |" in lines[3]


def test_json_has_numbers_and_nulls(mine, shown):
    one, two = json.loads(shown(mine, "--format", "json")[1])
    assert (one["rank"], one["seeds"], one["clean"], one["params_m"]) == (1, 3, 91.5, 0.272)
    assert (two["clean_std"], two["params_m"], two["recipe"]) == (None, None, "")


@pytest.mark.slow
def test_a_table_of_unlike_lines_says_in_what_they_differ(folder, mine, shown):
    results = folder("one", *entry("a", 5, 3, n=5), dataset="cifar10")
    head, *lines = shown(results, PUBLISHED / "paper_cifar10.csv")[1].splitlines()
    assert head.startswith("cifar10 + paper_cifar10.csv, n = 5, 10000, protocol final")
    assert lines[0].split()[:8] == [
        *("rank", "model", "recipe", "lambda_init", "seeds", "members"),
        *("n_examples", "source"),
    ]
    assert "lambda_init" not in shown(mine)[1]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["cannot read", "No such file"]),
        ("", ["cannot read"]),
        (b"\xff\xfe\x00binary", ["cannot read"]),
        ("model,accuracy\nnet,3\n", ["is not a leaderboard: it lacks rank, recipe"]),
        (MINE.replace("pgd_1_std", "pgd_1_sd"), ["is not a leaderboard: it also has pgd_1, pgd_1_sd"]),
        (MINE.replace("91.50", "ninety"), ["is not a leaderboard: clean is not a number", "ninety"]),
        (MINE.replace(",3,1,0.272", ",2.5,1,0.272"), ["is not a leaderboard: seeds is not a number"]),
        (MINE.replace("91.50", "inf"), ["is not a leaderboard: clean is not a number: it is infinite"]),
        (MINE.replace("91.50", "250"), ["is not a leaderboard: clean is out of range"]),
        (MINE.replace(",10,final", ",0,final"), ["is not a leaderboard: n_examples is out of range"]),
        (MINE.replace(",3,1,0.272", ",3,,0.272"), ["is not a leaderboard", "a row has no members"]),
        (MINE.replace(",", ";"), ["it lacks rank, model", "separated by ; and must be by ,"]),
        (MINE.replace(",", ";").replace(".", ","), ["separated by ; and must be by , with . in numbers"]),
        (MINE.partition("\n")[0], ["has no rows"]),
    ],
    ids=[
        *("missing", "empty", "binary", "results.csv", "strange columns", "words", "half a seed", "infinite"),
        *("no percentage", "no images", "no members"),
        *("semicolons", "decimal commas", "only a header"),
    ],
)
def test_a_file_that_is_no_leaderboard_is_refused_in_one_line(tmp_path, shown, text, parts):
    path = tmp_path / "board.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(shown(path), path, *parts)
    with pytest.raises(UserError):
        combine.read(path)


def test_a_file_that_a_spreadsheet_wrote_reads_as_before(mine, tmp_path):
    text = mine.read_text()
    empty = "," * text.partition("\n")[0].count(",")
    saved = "\r\n".join([*text.splitlines(), empty, empty, ""])
    (tmp_path / "saved.csv").write_bytes(b"\xef\xbb\xbf" + saved.encode())
    pd.testing.assert_frame_equal(combine.read(tmp_path / "saved.csv"), combine.read(mine))


@pytest.mark.slow
def test_a_folder_named_as_an_action_can_still_be_shown(folder, shown, monkeypatch, tmp_path):
    folder("compare", *entry("a", 9, 3))
    folder("results", *entry("b", 9, 3))
    monkeypatch.chdir(tmp_path)
    assert " a " in shown("show", "compare")[1]
    assert shown()[1] == shown("results")[1] == shown("show")[1]
    assert shown("--format", "csv") == shown("show", "results", "--format", "csv")


def test_help_names_both_actions(capsys):
    for argv in (["leaderboard", "--help"], ["leaderboard", "compare", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main.main(argv)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "show" in out
    assert "compare" in out


# The published files.


def paper(dataset):
    board = combine.read(PUBLISHED / f"paper_{dataset}.csv")
    return board.set_index(["model", "lambda_init", "members"])


# Read from the paper's tables by eye: (mean, std) in percent, std to three decimals where it is given.
PAPER = [
    ("cifar10", "preact_resnet110", "", 1, "clean", 93.58, 0.396),
    ("cifar10", "preact_resnet110", "", 1, "pgd_2", 5.60, 0.456),
    ("cifar10", "in_resnet110", "0.20-0.25", 1, "noise", 72.67, 3.583),
    ("cifar10", "in_resnet110", "0.20-0.25", 1, "gaussian_noise", 71.01, 4.769),
    ("cifar10", "in_resnet110", "0.20-0.25", 5, "pgd_2", 34.03, None),
    ("cifar10", "lambda_in_resnet110", "0.30-0.40", 1, "noise", 79.66, 0.219),
    ("cifar10", "in_resnet164", "0.10-0.20", 1, "fgsm_4", 32.81, 1.058),
    ("cifar10", "in_resnet164", "0.10-0.20", 5, "noise", 75.26, None),
    ("cifar10", "in_resnext29_8x64d", "0.20-0.25", 1, "impulse_noise", 55.26, None),
    ("cifar10", "in_resnet110_gating_sig", "tuned", 1, "ifgsm_2", 21.89, 13.397),
    ("cifar100", "resnext29_8x64d", "", 1, "clean", 81.63, None),
    ("cifar100", "in_resnet110", "0.25-0.30", 1, "pgd_2", 6.86, 1.399),
    ("cifar100", "lambda_in_resnet110", "0.20-0.25", 1, "pgd_4", 0.51, 0.143),
    ("cifar100", "preact_resnet164", "", 1, "fgsm_1", 35.15, 0.671),
    ("cifar100", "lambda_in_resnet164", "0.10-0.20", 5, "clean", 77.73, None),
]


@pytest.mark.parametrize(("dataset", "model", "interval", "members", "column", "mean", "std"), PAPER)
def test_the_papers_numbers(dataset, model, interval, members, column, mean, std):
    board = paper(dataset)
    line = board.loc[(model, interval, members)]
    assert line[column] == mean
    if std is None:
        assert pd.isna(line[f"{column}_std"])
    else:
        assert line[f"{column}_std"] == pytest.approx(std, abs=0.0051)  # two decimals


@pytest.mark.parametrize(("dataset", "lines", "numbers"), [("cifar10", 26, 193), ("cifar100", 23, 178)])
def test_the_papers_files_keep_the_contract(dataset, lines, numbers, shown):
    path = PUBLISHED / f"paper_{dataset}.csv"
    board = paper(dataset)
    assert path.read_text().splitlines()[0] == (
        "rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,agreement,improvement,"
        "clean,clean_std,noise,noise_std,"
        "impulse_noise,impulse_noise_std,speckle_noise,speckle_noise_std,"
        "gaussian_noise,gaussian_noise_std,shot_noise,shot_noise_std,"
        "fgsm_1,fgsm_1_std,fgsm_2,fgsm_2_std,fgsm_4,fgsm_4_std,"
        "ifgsm_1,ifgsm_1_std,ifgsm_2,ifgsm_2_std,ifgsm_4,ifgsm_4_std,"
        "pgd_1,pgd_1_std,pgd_2,pgd_2_std,pgd_4,pgd_4_std,"
        "corruption_source,source"
    )
    assert shown(path, "--format", "csv")[1].encode() == path.read_bytes()
    assert board.index.is_unique
    assert len(board) == lines
    assert board[[column for column in board if f"{column}_std" in board]].count().sum() == numbers
    assert set(board["source"]) == {"paper"}
    assert set(board["n_examples"]) == {10_000}
    assert set(board["protocol"]) == {"final"}
    assert board["rank"].isna().all()
    assert set(board["seeds"].dropna()) == {5}
    failed = board.index.get_level_values("lambda_init") == "0.30-0.40"
    assert board["seeds"].isna().tolist() == failed.tolist()  # runs that failed are left out of those means


# ---- bundled leaderboards, by their names


def test_a_bundled_leaderboard_has_a_bare_name(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    named, path = (gather([Path(source)]) for source in ("digits", PUBLISHED / "digits.csv"))
    assert named.title == path.title == "digits.csv"
    pd.testing.assert_frame_equal(named.board, path.board)
    assert combine.dataset_of([Path("paper_cifar100")]) == "cifar100"
    ours = folder("results", *entry("net", 9, 5))
    assert list(gather([ours, Path("digits")]).board["model"]) == ["net", *path.board["model"]]


def test_what_lies_in_the_working_directory_comes_before_what_is_bundled(folder, monkeypatch, tmp_path):
    folder("digits", *entry("mine", 9, 5))
    monkeypatch.chdir(tmp_path)
    assert list(gather([Path("digits")]).board["model"]) == ["mine"]


def test_an_unknown_name_is_one_line_with_the_bundled_ones(shown, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = "cifar10, cifar100, digits, paper_cifar10, paper_cifar100, robustbench"
    refused(shown("robustbensh"), "there are no results in robustbensh", names)
    refused(shown("paper", "cifar11", "--dataset", "cifar10"), "there are no results in cifar11", names)
    refused(shown(Path("sub") / "digits"), f"there are no results in {Path('sub') / 'digits'}", names)
