"""The figures: what is drawn, from which numbers, and that the same numbers give the same bytes."""

import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from robust_interp.analysis import landscape as analysis
from robust_interp.analysis.coefficients import describe
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.figures import coefficients, landscape, origin, robustness, stability, style
from robust_interp.figures.origin import FigureOrigin


def depth_table(values, model="in_resnet14", images=0):
    """`values`: train seed -> λ of the blocks at depths 2, 4 and 6 of six."""
    return pd.DataFrame(
        {"model": model, "train_seed": seed, "stage": i, "depth": 2 * i + 2, "blocks": 6, "images": images}
        | describe(np.asarray(value))
        for seed, row in values.items()
        for i, value in enumerate(row)
    )


def training_table():
    lines = [
        {"model": "m", "train_seed": s, "epoch": e, "stage": d // 2 - 1, "depth": d, "blocks": 6}
        | {"coefficient": 0.1 * d / e + s, "lr": 0.1 if e < 3 else 0.01}
        for s in (0, 1)
        for e in (1, 2, 3)
        for d in (2, 4, 6)
    ]
    return pd.DataFrame(lines)


DIAMOND = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)]


def plane(models=("a", "b"), size=5, label=1):
    rng = np.random.default_rng(0)
    return {
        "models": np.array(models),
        "label": np.array(label),
        "direction_of": np.array(""),
        "radii_255": np.linspace(-4, 4, size),
        "loss": rng.random((len(models), size, size)),
        "predicted": rng.integers(0, 3, (len(models), size, size)),
        "ball": np.array([DIAMOND] * len(models)),
    }


def looked_at():
    """What a plane's file holds beside it, of an image of 2 x 3 pixels."""
    return {
        "image": np.linspace(0, 1, 6).reshape(1, 2, 3),
        "sample": np.array(7),
        "seed": np.array(3),
        "what": np.array("shot_noise 5"),
        "eps_255": np.array([1.0, 3.0, 8.0]),
    }


def line_table(direction_of=""):
    """Two models at two images: the second image's losses are twice the first's, and never change class."""
    frames = [
        pd.DataFrame(
            {
                "sample": sample,
                "model": m,
                "direction_of": direction_of,
                "eps_255": np.arange(-2.0, 3),
                "loss": np.array([0, 0, 1, 2, 3 + i]) * (sample + 1),
                "predicted": [1, 1, 1, 0, 0] if sample == 0 else [2] * 5,
            }
        )
        for sample in (0, 1)
        for i, m in enumerate("ab")
    ]
    return pd.concat(frames)


def jacobian_table():
    lines = [
        {
            "model": m,
            "train_seed": s,
            "sample": 0,
            "depth": d,
            "blocks": 6,
            "undamped": 0.5,
            "damped": 0.1 * s,
            "norm": 2.0,
            "first_order": True,
        }
        for m in "ab"
        for s in (0, 1)
        for d in (2, 4, 6)
    ]
    return pd.DataFrame(lines)


def growth_table():
    lines = [
        {"model": m, "perturbation": p, "depth": d, "blocks": 6, "n": 3}
        | {
            f"{x}{y}": 1 + d * k
            for x in ("growth", "relative")
            for y, k in (("", 1), ("_low", 0.9), ("_high", 1.1))
        }
        for m in "ab"
        for p in ("noise", "fgsm")
        for d in range(7)
    ]
    return pd.DataFrame(lines)


FIGURES = {
    "depth": lambda: coefficients.depth_figure(depth_table({0: [0.1, 0.5, 1], 1: [0.2, 0.4, 2.5]})),
    "gated": lambda: coefficients.depth_figure(depth_table({0: [[0.1, 0.3], [0.5], [0, 2]]}, images=8)),
    "training": lambda: coefficients.training_figure(training_table()),
    "plane": lambda: landscape.plane_figure(plane()),
    "line": lambda: landscape.line_figure(line_table()),
    "jacobians": lambda: stability.jacobian_figure(jacobian_table()),
    "growth": lambda: stability.growth_figure(growth_table()),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["depth", "training", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("plane", "growth"))],
)
def test_same_numbers_same_bytes(name, tmp_path):
    """Whatever the user's own matplotlib settings are; and no date in the file."""
    first = [path.read_bytes() for path in style.save(FIGURES[name](), tmp_path / "one")]
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 9}):
        second = [path.read_bytes() for path in style.save(FIGURES[name](), tmp_path / "two")]
    assert first == second
    png, svg = first
    assert png.startswith(b"\x89PNG")
    assert svg.startswith(b"<?xml")
    assert b"<dc:date>" not in svg


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_axes_are_labelled(name):
    placed = [(panel, panel.get_subplotspec()) for panel in FIGURES[name]().axes]
    assert any(subplot for _, subplot in placed)
    for panel, subplot in placed:
        # a label of its own, or one that it shares with the first of its row or the last of its column
        if subplot is None:
            continue
        assert panel.get_ylabel() or not subplot.is_first_col()
        assert panel.get_xlabel() or not subplot.is_last_row() or panel.get_label() == "<colorbar>"


# A name as people have them, one without a place to break it, and one of wide letters
LONG = ["a_model.that+says:all-of/it(" * n + "end)" for n in (3, 12)] + ["x" * 300, "W模" * 90, "short"]


def named_long(table):
    """The table once for each long name in place of its first model."""
    one = table[table["model"] == table["model"].iloc[0]]
    return pd.concat([one.assign(model=name) for name in LONG])


def points(names):
    lines = [
        {"entry": name, "members": members, "kind": kind, "series": series, "x": x, "norm": norm, "n": 9}
        | {"seeds": 1, "accuracy": 50.0, "band_low": 40.0, "band_high": 60.0}
        for name, members in names
        for kind, series, x, norm in (
            ("clean", "clean", 0, None),
            ("attack", "fgsm", 2, "Linf"),
            ("corruption", "fog", 1, None),
            ("attack", "an_attack_of_a_plug_in_with_a_name_of_its_own_l2", 2, "L2"),
            ("attack", "pgd", 2, "Linf"),
        )
    ]
    return pd.DataFrame(lines)


BOTH = [(name, 1) for name in LONG] + [(f"{name} ×3", 3) for name in LONG]
OF_LONG = {
    "depth": lambda: coefficients.depth_figure(named_long(depth_table({0: [0.1, 0.5, 1], 1: [0, 1, 2]}))),
    "training": lambda: coefficients.training_figure(named_long(training_table())),
    "plane": lambda: landscape.plane_figure(plane(LONG) | {"direction_of": np.array(LONG[1])}),
    "line": lambda: landscape.line_figure(named_long(line_table(LONG[2]))),
    "with image": lambda: landscape.plane_figure(plane(LONG) | looked_at()),
    "jacobians": lambda: stability.jacobian_figure(named_long(jacobian_table())),
    "growth": lambda: stability.growth_figure(named_long(growth_table())),
    "eps": lambda: robustness.eps_figure(points(BOTH)),
    "severity": lambda: robustness.severity_figure(points(BOTH)),
    "improvement": lambda: robustness.improvement_figure(
        pd.DataFrame([{"entry": f"{name} ×3", "column": "clean", "improvement": 1.0} for name in LONG])
    ),
    "many": lambda: robustness.eps_figure(points([(f"{at}_{LONG[0]}", 1) for at in range(20)])),
}


def texts_of(figure):
    """Every text to be seen, apart from ticks, with its place in pixels."""
    found = [text for legend in figure.legends for text in legend.get_texts()]
    for panel in figure.axes:
        found += [panel.title, panel._left_title, panel.xaxis.label, panel.yaxis.label]
    shown = [text for text in found if text.get_text() and text.get_visible()]
    return {text: text.get_window_extent() for text in shown}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph .* missing")  # DejaVu Sans has no Chinese
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.exhaustive] * (name in ("jacobians", "plane", "growth", "many"))
        )
        for name in OF_LONG
    ],
)
def test_names_of_any_length_are_drawn_whole_and_over_nothing(name):
    figure = OF_LONG[name]()
    style.styled(figure.draw_without_rendering)()
    places = texts_of(figure)
    for text, box in places.items():
        assert box.x0 > -1, text
        assert box.x1 < figure.bbox.width + 1, text
        assert box.y0 > -1, text
        assert box.y1 < figure.bbox.height + 1, text
    boxes = [(text, box) for text, box in places.items()]
    for legend in figure.legends:  # with its signs
        ends = legend.get_window_extent()
        assert -1 < ends.x0 < ends.x1 < figure.bbox.width + 1
    assert figure.get_figheight() < 5 + 3 * len(figure.axes)  # no name in a column of single letters
    for at, (text, box) in enumerate(boxes):
        for other, beside in boxes[at + 1 :]:
            assert not box.shrunk(0.98, 0.9).overlaps(beside.shrunk(0.98, 0.9)), (text, other)
        for panel in figure.axes:
            assert not box.shrunk(0.98, 0.9).overlaps(panel.bbox), (text, panel)
    for panel in figure.axes:
        if panel.get_label() != "<colorbar>":
            assert min(panel.bbox.width, panel.bbox.height) > 0.7 * figure.dpi  # something is left to see
    whole = "".join(text.get_text().replace("\n", "") for text in places)
    assert all(name.replace(" ", "") in whole.replace(" ", "") for name in LONG) or name == "many"


def test_text_is_cut_behind_what_separates_words():
    inches = style.width_of("alpha_beta_", 8) + 0.01
    assert style.wrapped("alpha_beta_gamma", inches) == "alpha_beta_\ngamma"
    assert style.wrapped("of alpha beta", inches) == "of alpha\nbeta"
    assert style.wrapped("alpha (beta)", inches) == "alpha\n(beta)"
    assert style.wrapped("alpha", inches) == "alpha"
    parts = style.wrapped("i" * 100, inches).split("\n")
    assert "".join(parts) == "i" * 100
    assert len(set(map(len, parts[:-1]))) == 1


def drawn(panel, label=None):
    return [
        np.asarray(line.get_ydata()).tolist()
        for line in panel.get_lines()
        if label in (None, line.get_label())
    ]


def test_depth_shows_mean_std_and_guides():
    figure = coefficients.depth_figure(depth_table({0: [0.1, 0.5, 1.0], 1: [0.3, 0.5, 2.0]}))
    (panel,) = figure.axes
    lines = drawn(panel)
    assert [2.0, 2.0] in lines  # the stability limit
    for value in (0.2, 0.5, 1.5):  # means
        assert [pytest.approx(value)] in lines
    for value in (0.1, 0.3, 2.0):  # seeds
        assert [value] in lines
    boundaries = [line.get_xdata()[0] for line in panel.get_lines() if line.get_linestyle() == ":"]
    assert boundaries == [2.5, 4.5]
    bands = [collection.get_datalim(panel.transData) for collection in panel.collections]
    std = 0.2 / 2**0.5  # of two values that are 0.2 apart, with n - 1
    assert (bands[0].y0, bands[0].y1) == pytest.approx((0.2 - std / 1, 0.2 + std))
    assert panel.get_ylim()[1] > 2
    assert panel.get_title(loc="left") == "in_resnet14 (2 seeds, mean ± std)"


def test_gated_depth_shows_quantiles():
    values = np.linspace(0, 1, 101)
    figure = coefficients.depth_figure(depth_table({0: [values, values, values]}, images=8))
    (panel,) = figure.axes
    assert [pytest.approx(0.5)] in drawn(panel)
    bands = [collection.get_datalim(panel.transData) for collection in panel.collections]
    assert (bands[0].y0, bands[0].y1) == pytest.approx((0.05, 0.95))
    assert (bands[1].y0, bands[1].y1) == pytest.approx((0.25, 0.75))
    assert panel.get_title(loc="left").endswith("(1 seed, quantiles over channels and positions of 8 images)")


@pytest.mark.slow
def test_training_shows_means_over_seeds_a_panel_a_stage_and_where_the_rate_drops():
    first, second, third, _colours = coefficients.training_figure(training_table()).axes
    for panel, block in ((first, 2), (second, 4), (third, 6)):
        lines = drawn(panel)
        means = [0.1 * block / epoch + 0.5 for epoch in (1, 2, 3)]  # of seeds that are 1 apart
        assert pytest.approx(means) in lines
        assert pytest.approx([value + 0.5 for value in means]) in lines  # seed 1
        assert len(lines) == 3 + 1
        assert [line.get_xdata() for line in panel.get_lines() if line.get_linestyle() == "--"] == [
            [2.5, 2.5]
        ]
    titles = [panel.get_title("left").replace("\n", " ") for panel in (first, second, third)]
    assert titles == [f"m (mean of 2 seeds), stage {stage}" for stage in (1, 2, 3)]


def test_a_smooth_decay_has_no_drops():
    table = training_table().assign(lr=lambda t: 0.1 * 0.8 ** t["epoch"])
    assert coefficients.drops(table) == []
    assert coefficients.drops(table.assign(lr=np.nan)) == []
    assert coefficients.drops(training_table()) == [3]


@pytest.mark.slow
def test_small_coefficients_are_enlarged_and_blocks_without_are_marked():
    figure = coefficients.depth_figure(depth_table({0: [0.1, 0.2, 0.4]}))
    (panel,) = figure.axes
    assert panel.get_ylim()[1] == pytest.approx(1.3 * 0.4)
    (without,) = [line for line in panel.get_lines() if line.get_marker() == "x"]
    assert list(without.get_xdata()) == [1, 3, 5]
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "block without λ" in said
    assert not any("stability limit" in text for text in said)
    large = coefficients.depth_figure(depth_table({0: [0.1, 0.2, 0.6]}))
    assert large.axes[0].get_ylim()[1] > 2


def test_regions_are_coloured_by_class():
    arrays = plane(models=("a",))
    figure = landscape.plane_figure(arrays, ["cat", "dog", "ship"])
    regions = next(panel for panel in figure.axes if "predicted" in panel.get_title(loc="left"))
    (image,) = regions.get_images()
    painted = np.asarray(image.get_array())
    for i in range(5):
        for j in range(5):
            assert painted[i, j].tolist() == pytest.approx(to_rgb(style.AREAS[arrays["predicted"][0, i, j]]))
    assert list(image.get_extent()) == [-5, 5, -5, 5]  # pixels around positions that are 2 apart
    assert image.origin == "lower"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["cat", "dog (true)", "ship"]


@pytest.mark.slow
def test_the_true_class_is_named_even_if_it_is_never_predicted():
    figure = landscape.plane_figure(plane(label=7))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0", "1", "2", "7 (true)"]


def test_class_colours():
    assert landscape.class_colours([3, 9, 3]) == {3: style.AREAS[3], 9: style.AREAS[9]}
    assert landscape.class_colours([13, 3, 99]) == {3: style.AREAS[0], 13: style.AREAS[1], 99: style.AREAS[2]}
    assert len(set(style.AREAS)) == 10
    assert len(set(landscape.class_colours(range(0, 90, 3)).values())) == 30


@pytest.mark.slow
def test_losses_share_one_scale():
    arrays = plane()
    arrays["loss"][1] *= 3
    figure = landscape.plane_figure(arrays)
    scales = {
        panel.get_images()[0].get_clim() for panel in figure.axes if "loss" in panel.get_title(loc="left")
    }
    assert scales == {(0, arrays["loss"].max())}


@pytest.mark.slow
def test_a_loss_that_is_zero_everywhere_can_be_drawn():
    arrays = plane()
    arrays["loss"][:] = 0
    landscape.plane_figure(arrays).draw_without_rendering()


def test_lines_are_means_and_quantiles_over_images():
    figure = landscape.line_figure(line_table(direction_of="a"))
    losses, changes = figure.axes
    assert drawn(losses, "b") == [[0, 0, 1.5, 3, 6]]  # of 0, 0, 1, 2, 4 and twice that
    wide, narrow = (collection.get_datalim(losses.transData) for collection in losses.collections[2:])
    assert (wide.y0, wide.y1) == pytest.approx((0, 4 + 0.95 * 4))
    assert (narrow.y0, narrow.y1) == pytest.approx((0, 4 + 0.75 * 4))
    assert drawn(changes)[0] == [0, 0, 0, 50, 50]  # one image of two
    assert losses.get_xlabel() == "FGSM direction of a (1/255)"
    assert losses.get_title(loc="left") == "2 images: mean"


@pytest.mark.slow
def test_a_plane_shows_its_image_and_the_ball_of_each_radius_inside():
    figure = landscape.plane_figure(plane() | looked_at(), ["cat", "dog", "ship"])
    *_, picture = [panel for panel in figure.axes if panel.get_title(loc="left") == "test image 7"]
    assert np.asarray(picture.get_images()[0].get_array()).tolist() == looked_at()["image"][0].tolist()
    assert picture.get_xlabel() == "shot_noise 5, class dog,\northogonal direction: seed 3"
    regions = next(panel for panel in figure.axes if "predicted" in panel.get_title(loc="left"))
    outlines = [patch.get_xy()[:-1].tolist() for patch in regions.patches]  # each in white and black
    assert (
        outlines[::2] == outlines[1::2] == [[[e, 0], [0, e], [-e, 0], [0, -e]] for e in (1, 3)]
    )  # 8: outside
    assert figure.legends[0].get_texts()[-1].get_text() == "in the ball of ε = 1, 3 (1/255)"


@pytest.mark.slow
def test_each_model_of_a_plane_has_its_own_ball():
    long = np.array(DIAMOND) * [1, 1.5]  # reaches to 4.5 for the radius 3: not inside
    figure = landscape.plane_figure(plane() | looked_at() | {"ball": np.array([DIAMOND, long])})
    of_a, of_b = (panel for panel in figure.axes if "predicted" in panel.get_title(loc="left"))
    assert (len(of_a.patches), len(of_b.patches)) == (4, 2)
    assert of_b.patches[0].get_xy()[:-1].tolist() == long.tolist()


@pytest.mark.slow
def test_a_plane_that_was_written_without_its_ball_shows_none():
    arrays = plane() | looked_at()
    del arrays["ball"]
    figure = landscape.plane_figure(arrays)
    assert not any(panel.patches for panel in figure.axes[:4])
    assert not any("ball" in text.get_text() for text in figure.legends[0].get_texts())


@pytest.mark.slow
@pytest.mark.parametrize("depths", [(6, 54), (54, 6)])
def test_every_block_of_models_of_several_depths_is_seen(depths):
    tables = [jacobian_table().assign(model=f"of {blocks}", blocks=blocks) for blocks in depths]
    figure = stability.jacobian_figure(pd.concat(tables))
    assert all(panel.get_xlim() == (0.5, 54.5) for panel in figure.axes[:4])


@pytest.mark.slow
def test_a_corruption_that_only_some_kinds_of_models_met_leaves_a_panel_empty():
    both = points([("net", 1), ("net ×3", 3)])
    partly = both.assign(series=both["series"].where(both["series"] != "fog", "snow"))
    found = pd.concat([both[both["members"] == 1], partly])
    found = found[(found["series"] != "snow") | (found["members"] == 3)]
    titles = {panel.get_title(loc="left") for panel in robustness.severity_figure(found).axes}
    assert {"fog", "snow"} <= titles


@pytest.mark.slow
def test_jacobians_show_means_and_ranges():
    figure = stability.jacobian_figure(jacobian_table())
    eigenvalues, norms = figure.axes[:2]
    lines = drawn(eigenvalues)
    assert [0.5] * 3 in lines
    assert pytest.approx([0.05] * 3) in lines
    bars = [s.tolist() for c in eigenvalues.collections for s in c.get_segments()]
    assert [[2.12, 0.0], [2.12, pytest.approx(0.1)]] in bars
    assert [2.0] * 3 in drawn(norms)
    assert norms.get_ylim()[0] == 0
    assert "1 images × 2 seeds" in eigenvalues.get_title(loc="left")
    for panel in figure.axes:
        told = [text.get_text() for text in panel.get_legend().get_texts()]
        assert told in (["J", "ρ(λ) J − λ"], ["block with skip"])
    assert "least to largest over images and seeds" in figure.legends[0].get_texts()[0].get_text()


def test_an_eigenvalue_without_the_closed_form_is_called_by_what_it_is():
    table = jacobian_table()
    table.loc[table["model"] == "b", "first_order"] = False
    figure = stability.jacobian_figure(table)
    told = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in figure.axes[::2]]
    assert told == [["J", "ρ(λ) J − λ"], ["J", "Jacobian of merge − x"]]


@pytest.mark.parametrize("unknown", [[1], [0, 1, 2]])
def test_an_interval_that_is_not_known_is_not_drawn_as_a_bar_of_no_length(unknown):
    rows = [
        {"entry": "net", "kind": "attack", "x": x, "difference": d, "low": d - 2.0, "high": d + 3.0}
        for x, d in ((1, 5.0), (2, -4.0), (4, 6.0))
    ]
    table = pd.DataFrame(rows)
    table.loc[unknown, ["low", "high"]] = np.nan
    accuracies = table.rename(columns={"difference": "accuracy", "low": "band_low", "high": "band_high"})
    look = {"net": {"color": "black"}}
    for draw, given in (
        (robustness.draw_differences, table),
        (robustness.draw_curves, accuracies.assign(seeds=1)),
    ):
        axes = matplotlib.figure.Figure().subplots()
        draw(axes, given, look)
        assert [5.0, -4.0, 6.0] in drawn(axes)
        bars = [segment for c in axes.collections for segment in c.get_segments()]
        seen = [bar[:, 1].tolist() for bar in bars if bar.size]  # Matplotlib keeps no ends that are NaN
        known = [row for at, row in enumerate(rows) if at not in unknown]
        assert seen == [[row["low"], row["high"]] for row in known]
        low, high = axes.get_ylim()
        assert low < -4 < 6 < high


@pytest.mark.slow
def test_figures_know_neither_torch_nor_models():
    code = (
        "import sys; "
        "from robust_interp.figures import classes, coefficients, landscape, robustness, stability; "
        "assert not {'torch', 'timm'} & sys.modules.keys(); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_one_line_says_what_to_install():
    code = "import sys; sys.modules['matplotlib'] = None; from robust_interp.figures import coefficients"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("robust_interp.core.errors.UserError")  # which a command prints without the rest
    assert last.endswith(install("plots"))


@pytest.mark.slow
def test_a_figure_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        style.save(FIGURES["line"](), tmp_path / "file" / "figure")


# --- commands ---------------------------------------------------------------------------------------------


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_plot_coefficients(command, tiny_zoo, tmp_path):
    out = tmp_path / "figures"
    status, printed, _ = command("plot", "coefficients", "in_resnet14", "--zoo", tiny_zoo, "-o", out)
    assert status == 0
    # no curve in these checkpoints, hence no figure over training
    assert files(out) == [
        "coefficients.csv",
        "coefficients.png",
        "coefficients.svg",
        "coefficients_shares.csv",
    ]
    table = pd.read_csv(out / "coefficients.csv")
    assert table["train_seed"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table["mean"].between(0.2, 0.25).all()
    shares = pd.read_csv(out / "coefficients_shares.csv")
    assert shares["above_0.01"].tolist() == shares["in_0.01_1"].tolist() == [100, 100]
    assert "| in_resnet14 | 1 | 3 | 100.00 |" in printed


@pytest.mark.slow
def test_plot_coefficients_over_training(command, tmp_path):
    out = tmp_path / "fig1.svg"
    assert command("plot", "coefficients", "in_resnet20.digits_digits_seed0", "-o", out)[0] == 0
    assert {"fig1.png", "fig1.svg", "fig1_training.svg", "fig1_training.csv"} <= set(files(tmp_path))
    table = pd.read_csv(tmp_path / "fig1_training.csv")
    final = pd.read_csv(tmp_path / "fig1.csv")
    last = table[table["epoch"] == table["epoch"].max()]
    np.testing.assert_allclose(last["coefficient"], final["mean"], atol=1e-3)  # stored in half precision


@pytest.mark.exhaustive
@pytest.mark.slow
def test_plot_landscape(command, tiny_zoo, tmp_path):
    models = [
        "--models",
        "preact_resnet14,in_resnet14",
        "--zoo",
        tiny_zoo,
        "--points",
        7,
        "--device",
        "cpu",
        "--n",
        4,
    ]
    noise = ["--corruption", "shot_noise", "--severity", 3]
    assert command("plot", "landscape", *models, *noise, "--sample", "3,0", "-o", tmp_path)[0] == 0
    kinds = ("npz", "png", "svg")
    planes = [f"landscape_plane_{sample}.{kind}" for sample in (0, 3) for kind in kinds]
    assert files(tmp_path) == sorted([*planes, *(f"landscape_line.{kind}" for kind in ("csv", "png", "svg"))])
    table = pd.read_csv(tmp_path / "landscape_line.csv")
    assert table["model"].unique().tolist() == ["preact_resnet14", "in_resnet14"]
    assert table["sample"].unique().tolist() == [0, 1, 2, 3]
    assert (table["eps_255"].min(), table["eps_255"].max()) == (-64, 64)  # twice the largest usual eps
    arrays = dict(np.load(tmp_path / "landscape_plane_3.npz"))
    assert arrays["loss"].shape == arrays["predicted"].shape == (2, 7, 7)
    along = table[(table["sample"] == 3) & (table["model"] == "in_resnet14")]["loss"]
    np.testing.assert_allclose(arrays["loss"][1, 3], along, rtol=1e-4)
    assert arrays["image"].shape == (1, 8, 8)
    assert (int(arrays["sample"]), int(arrays["seed"]), str(arrays["what"])) == (3, 0, "shot_noise 3")
    assert arrays["eps_255"].tolist() == [8, 16, 32]
    before = (tmp_path / "landscape_plane_3.png").read_bytes()
    style.save(landscape.plane_figure(arrays), tmp_path / "landscape_plane_3")
    assert (tmp_path / "landscape_plane_3.png").read_bytes() == before  # from its data alone


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "said"), [([], None), ([1], "1 of 3"), ([0, 2], "2 of 3")])
def test_plot_landscape_says_how_many_images_have_no_direction(
    command, tiny_zoo, tmp_path, monkeypatch, lost, said
):
    def directions(classifiers, image, label, sample, *others):
        if sample in lost:
            raise UserError("the gradient at this image is zero everywhere: there is no FGSM direction")
        return measured(classifiers, image, label, sample, *others)

    measured = analysis.directions
    monkeypatch.setattr(analysis, "directions", directions)
    sizes = ["--sample", 5, "--points", 3, "--n", 3, "--device", "cpu", "--zoo", tiny_zoo]
    status, printed, _ = command("plot", "landscape", "--models", "in_resnet14", *sizes, "-o", tmp_path)
    assert status == 0
    lines = [line for line in printed.splitlines() if "left out" in line]
    reason = "images left out of the line: zero or non-finite gradient"
    assert lines == ([f"{said} {reason}"] if said else [])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_stability(command, tiny_zoo, tmp_path):
    sizes = ["--n", 1, "--growth-n", 3, "--device", "cpu", "--seeds", "0,"]
    models = ["preact_resnet14", "in_resnet14"]
    status, printed, _ = command("stability", *models, "--zoo", tiny_zoo, "-o", tmp_path, *sizes)
    assert status == 0
    growths = [f"stability{part}.{kind}" for part in ("", "_growth") for kind in ("csv", "png", "svg")]
    assert files(tmp_path) == sorted(growths)
    table = pd.read_csv(tmp_path / "stability.csv").set_index(["model", "block"])
    resnet, damped = table.loc["preact_resnet14"], table.loc["in_resnet14"]
    np.testing.assert_allclose(resnet["damped"], resnet["undamped"], rtol=1e-4)
    # ρ = 1: the real part drops by λ
    np.testing.assert_allclose(damped["undamped"] - damped["damped"], damped["coefficient"], rtol=1e-2)
    assert printed.count("| in_resnet14 |") == 3
    growth = pd.read_csv(tmp_path / "stability_growth.csv")
    assert set(growth["perturbation"]) == {"noise", "fgsm"}
    assert growth["n"].eq(3).all()
    assert growth[growth["depth"] == 0]["growth"].eq(1).all()


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["coefficients", "preact_resnet14"], 1, "no block has a λ"),
        (["coefficients", "in_resnet15"], 1, "unknown model"),
        (["landscape", "--models", "in_resnet14", "--sample", "450"], 1, "0 to 449"),
        (["landscape", "--models", "in_resnet14", "--severity", "3"], 1, "needs --corruption"),
        (["landscape", "--models", "in_resnet14", "--corruption", "fog_of_war"], 1, "unknown corruption"),
        (
            ["landscape", "--models", "in_resnet14", "--corruption", "shot_noise", "--severity", "6"],
            1,
            "not 6",
        ),
        (["landscape", "--models", "in_resnet14", "--corruption", "noise"], 1, "one corruption"),
        (["landscape", "--models", "in_resnet14", "--points", "60"], 2, "odd"),
        (["landscape", "--models", "in_resnet14", "--points", "1"], 2, "odd"),
        (["landscape", "--models", "in_resnet14", "--radius", "nan"], 2, "above 0"),
        (["landscape", "--models", "in_resnet14", "--sample", "-1"], 2, "--sample"),
    ],
)
def test_mistakes_are_one_line(argv, status, message, command, tiny_zoo, tmp_path):
    found, _, errors = command("plot", *argv, "--zoo", tiny_zoo, "-o", tmp_path / "out")
    assert found == status
    assert len(errors.strip().splitlines()) == 1
    assert message in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_svg_says_what_it_was_drawn_from(tmp_path):
    told = FigureOrigin("digits", {"a<b&c": "12ab"}, 3, "act(λ) {over} </dc:description> depth.")
    plain = style.save(FIGURES["line"](), tmp_path / "plain")
    png, svg = style.save(FIGURES["line"](), tmp_path / "told", told)
    assert origin.read(svg) == told
    assert origin.read(plain[1]) is None
    assert png.read_bytes() == plain[0].read_bytes()
    before = '{"checkpoints": {"net": "12ab"}, "dataset": "digits", "n": 3}'
    (tmp_path / "older.svg").write_text(f"<dc:description>{before}</dc:description>")
    assert origin.read(tmp_path / "older.svg") == FigureOrigin("digits", {"net": "12ab"}, 3)
    (tmp_path / "broken.svg").write_text("<dc:description>{}</dc:description>")
    assert origin.read(tmp_path / "broken.svg") is None
