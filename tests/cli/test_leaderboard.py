"""One table, as wide as the terminal."""

import shlex
from pathlib import Path

import pytest
from rich.console import Console
from support.hand_made import attack, card, first, run

from robust_interp.cli import console
from robust_interp.cli.main import main
from robust_interp.results import brief, combine, compare
from robust_interp.store import Store

PUBLISHED = Path(__file__).parents[2] / "leaderboards"


@pytest.fixture
def printed(monkeypatch, capsys):
    """Prints published leaderboards on a terminal of some width: its lines."""

    def show(width, files, columns=None, dataset=None):
        made = Console(width=width, force_terminal=True, color_system=None, markup=False)
        monkeypatch.setattr(console, "console", lambda: made)
        board, title, ranked_by = combine.gather([PUBLISHED / file for file in files], dataset)
        console.print_leaderboard(board, title, ranked_by, columns, [str(PUBLISHED / file) for file in files])
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return show


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 90, 120, 200])
@pytest.mark.parametrize(
    "files", [["digits.csv"], ["paper_cifar10.csv"], ["cifar10.csv", "robustbench.csv"]], ids=" ".join
)
def test_a_table_stands_once_and_fits(printed, files, width):
    lines = printed(width, files, dataset=None if files == ["digits.csv"] else "cifar10")
    assert max(map(len, lines)) <= width
    assert sum({"model", "members"} <= set(line.split()) for line in lines) == 1


def test_a_narrow_terminal_keeps_what_ranks_and_names_what_it_leaves_out(printed):
    lines = printed(80, ["digits.csv"])
    heads = lines[1].split()
    assert {"rank", "model", "members", "clean", "pgd_16*"} <= set(heads)
    notes = " ".join(lines[10:])  # after the title, the heads and eight models
    assert notes.startswith(
        "* rank by pgd_16, among rows of the same protocol and images not shown for lack of space: "
    )
    left_out = notes.partition("not shown for lack of space: ")[2].partition(";")[0].split(", ")
    hint = f"robust-interp leaderboard {PUBLISHED / 'digits.csv'} --columns model,NAMES"
    assert notes.replace(" ", "").endswith(f"choose columns with {hint}".replace(" ", ""))
    everything = printed(300, ["digits.csv"])
    assert sorted([*heads, *left_out]) == sorted(everything[1].split())
    assert not any("lack of space" in line for line in everything)


def test_columns_give_way_by_importance_and_every_attack_keeps_one_before_any_has_two():
    board, _, ranked_by = combine.gather([PUBLISHED / "digits.csv"])
    order = brief.by_importance(board, brief.for_readers(board), ranked_by.values())
    assert order[:6] == ["model", "rank", "pgd_16", "members", "clean", "noise"]
    assert set(order[6:8]) == {"pgd_8", "pgd_32"}
    assert order[8:] == [
        "seeds",
        "fgsm_16",
        "ifgsm_16",
        "fgsm_8",
        "ifgsm_8",
        "fgsm_32",
        "ifgsm_32",
        *order[-2:],
    ]
    assert order[-2:] == ["agreement", "improvement"]


def test_what_tells_rows_of_one_model_apart_stays_longest():
    board, _, ranked_by = combine.gather([PUBLISHED / "cifar10.csv"])
    board = board[board["model"].str.endswith("110") & (board["n_examples"] == 1000)]  # recipes, no ensembles
    order = brief.by_importance(board, brief.for_readers(board), ranked_by.values())
    assert order[:5] == ["model", "rank", "pgd_2", "recipe", "clean"]
    assert order.index("members") > order.index("noise")


def test_rows_that_would_look_alike_are_told_apart_in_their_names(monkeypatch, capsys, tmp_path):
    with Store(tmp_path) as store:
        for seed in (0, 1):  # two runs, so two rows
            run(store, [(card("preact_resnet110", seed), attack("pgd", 2), first(4 - seed))])
        run(store, [(card("in_resnet110", 0), attack("pgd", 2), first(9))])
    board, title, ranked_by = combine.gather([tmp_path])
    texts = brief.for_readers(board)
    names = ["in_resnet110", "preact_resnet110", "preact_resnet110"]
    assert brief.names_apart(board, texts) == texts["model"] == names
    apart = ["in_resnet110", "preact_resnet110 (seed 0)", "preact_resnet110 (seed 1)"]
    assert brief.names_apart(board, {"model", "rank", "pgd_2"}) == apart
    made = Console(width=28, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    console.print_leaderboard(board, title, ranked_by)
    out = capsys.readouterr().out
    assert ("weights" in out.splitlines()[1], out.count("(seed")) == (False, 2)


def test_names_tell_rows_apart_that_the_chosen_columns_do_not():
    board, *_ = combine.gather([PUBLISHED / "cifar10.csv"])
    texts = brief.for_readers(board, ["model", "recipe", "clean"])
    assert texts["model"][:3] == [
        *("in_resnet110", "lambda_in_resnet110"),  # alone with their recipes
        "in_resnet110 (members 1, n_examples 1000)",
    ]
    assert len(set(zip(texts["model"], texts["recipe"], strict=True))) == len(board)
    assert brief.for_readers(board, ["clean"]).keys() == {"clean"}


def test_further_tables_of_chosen_columns_tell_rows_apart_by_their_names_alone(printed):
    lines = printed(80, ["cifar10.csv"], ["model", "recipe", "n_examples", "clean", "noise", "pgd_*"])
    heads = [at for at, line in enumerate(lines) if line.startswith("model ")]
    assert len(heads) > 1
    rows = "".join("".join(lines[heads[-1] :]).split())
    assert rows.count("recipequick_warmup_epochs_1_bf16") == 1  # of in_resnet110, which has several
    assert "3trainseeds" not in rows  # n and recipe are enough


def test_a_number_of_train_seeds_is_not_taken_for_a_seed():
    board, *_ = combine.gather([PUBLISHED / "stores" / "controls"])
    names = brief.for_readers(board, ["model", "pgd_2"])["model"]
    assert {"preact_resnet20_burst100 (1 train seed)", "preact_resnet20_burst100 (3 train seeds)"} <= set(
        names
    )


def test_the_interval_of_lambda_tells_rows_apart_on_a_narrow_terminal(monkeypatch, capsys):
    made = Console(width=60, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    given = "paper_cifar10 --models in_resnet110 --sort pgd_2"
    assert main(["leaderboard", *shlex.split(given)]) == 0
    (head,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("model ")]
    assert head[:4] == ["model", "lambda_init", "members", "clean"]


@pytest.mark.parametrize("audit", ["fail(n=100 eps=2)", "unreliable", "pass(n=100 eps=2)", "warn(n=9 eps=2)"])
def test_an_audit_that_doubts_a_row_gives_way_after_what_ranks_it(audit):
    board, _, ranked_by = combine.gather([PUBLISHED / "digits.csv"])
    board.loc[3, "audit"] = audit
    order = brief.by_importance(board, brief.for_readers(board), ranked_by.values())
    is_doubted = audit.startswith(("fail", "unreliable"))
    assert (order.index("audit") == order.index("clean") + 1) is is_doubted
    assert (order.index("audit") < order.index("noise")) is is_doubted


def test_the_command_for_other_columns_shows_the_same_rows(monkeypatch, capsys):
    made = Console(width=80, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    given = "robustbench --dataset cifar10 --models 'A*,K*' --sort autoattack_8 --top 3 --intervals"
    assert main(["leaderboard", *shlex.split(given)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"robust-interp leaderboard {given} --columns model,NAMES" in told


def test_a_long_name_takes_several_lines_and_loses_nothing(printed):
    lines = printed(80, ["robustbench.csv"], dataset="cifar10")
    at = next(at for at, line in enumerate(lines) if line.startswith("Amini2024"))
    assert lines[at].split()[0] + lines[at + 1] == "Amini2024MeanSparse_S-WRN-70-16"


def test_chosen_columns_stand_in_their_order_and_the_last_below(printed):
    lines = printed(60, ["digits.csv"], ["model", "pgd_32", "clean", "seeds", "fgsm_*"])
    # 17 characters of a name and the space after it, 11 of pgd_32, 11, 7 and 11: a sixth column has no room
    heads = [line.split() for line in lines if line.startswith("model")]
    assert heads == [["model", "pgd_32", "clean", "seeds", "fgsm_8"], ["model", "fgsm_16", "fgsm_32"]]
    assert sum(line.startswith("plain_net20") for line in lines) == 4  # two rows, twice
    assert not any("lack of space" in line for line in lines)


def test_a_column_that_fits_beside_nothing_is_named(printed):
    lines = printed(12, ["digits.csv"], ["model", "pgd_32"])
    assert "not shown for lack of space: pgd_32; --format csv has all columns" in " ".join(lines)


def test_an_empty_line_stands_between_rows_of_other_ranks(monkeypatch, capsys, tmp_path):
    with Store(tmp_path) as store:
        for n in (10, 20):
            run(store, [(card(model), attack("pgd", 2), first(4, n)) for model in ("a", "b")])
    made = Console(width=200, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    board, title, ranked_by = combine.gather([tmp_path])
    console.print_leaderboard(board, title, ranked_by)
    ranks = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:-1]]
    assert ranks == [["1", "a"], ["1", "b"], [], ["1", "a"], ["1", "b"]]
    console.print_leaderboard(combine.sort(board, "model"), title, ranked_by)
    assert [] not in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_comparison_keeps_its_verdict_on_a_narrow_terminal(monkeypatch, capsys, tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card(model), attack("pgd", 2), first(4)) for model in ("a", "b")])
    found = compare.from_folders([tmp_path], "a", "b")
    for width, whole in ((60, False), (200, True)):
        made = Console(width=width, force_terminal=True, color_system=None, markup=False)
        monkeypatch.setattr(console, "console", lambda made=made: made)
        console.print_comparison(found)
        out = capsys.readouterr().out
        assert max(len(line.rstrip()) for line in out.splitlines()) <= width
        assert "verdict" in out
        assert "not significant" in out
        assert ("not shown for lack of space: " in out) is not whole


def test_a_comparison_of_one_seed_has_its_p_values_on_80_columns(monkeypatch, capsys, tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card(model), attack("pgd", 2), first(4)) for model in ("a", "b")])
    made = Console(width=80, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    console.print_comparison(compare.from_folders([tmp_path], "a", "b"))
    heads, values = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:3])
    assert heads == "column A B A - B only A / B p Holm p verdict"  # nothing over seeds
    assert values.endswith(" 1 1 not significant")


@pytest.mark.slow
def test_without_a_terminal_nothing_is_left_out(command):
    status, out, _ = command("leaderboard", PUBLISHED / "digits.csv", PUBLISHED / "digits.csv")
    assert status == 0
    assert "lack of space" not in out
    assert len(out.splitlines()) == 2 + 16 + 1
