"""Checkpoints: what is saved is loaded, what is broken is named, and nothing in a file is ever run."""

import json
import os
import random
import shutil
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from robust_interp import data, zoo
from robust_interp.analysis import inputs
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.core.errors import UserError
from robust_interp.zoo import CONFIG, RECORD, WEIGHTS, Checkpoint, pretrained

CFG = {"num_classes": 10, "input_size": [1, 8, 8], "mean": [0.3], "std": [0.4]}


def network(architecture="in_resnet14", seed=0, **arguments):
    torch.manual_seed(seed)
    model = zoo.create(architecture, **{"num_classes": 10, "in_chans": 1} | arguments)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("num_batches_tracked"):
                buffer.fill_(12345)  # more than half precision can count
            else:
                buffer.add_(torch.rand_like(buffer))
    return model


def save(place, name="in_resnet14.digits_quick_seed0", half=False, seed=0, record=None, **arguments):
    model = network(name.partition(".")[0], seed, **arguments)
    usual = {"lambda_init": [0.2, 0.25], "parameters": 1, "clean_accuracy": 99.0, "clean_n": 450}
    record = usual | (record or {})
    return zoo.save(model, place / name, CFG, arguments, record, half), model


def one_line(refusal, *parts):
    message = str(refusal.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message
    return message


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No checkpoints but those a test makes: an empty working folder and an empty bundled zoo."""
    monkeypatch.chdir(tmp_path)
    for module in (zoo.catalogue, pretrained):
        monkeypatch.setattr(module, "bundled", lambda: tmp_path / "bundled")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "dataset"),
    [
        (["in_resnet20.cifar10_quick_seed0"], "cifar10"),
        (["in_resnet20", "x/y/in_resnet20.cifar100_quick_12epochs_seed10"], "cifar100"),
        (["in_resnet20.cifar10_quick_seed0+in_resnet20.cifar10_quick_seed1"], "cifar10"),
        (["all", "timm:resnet18.a1_in1k", "in_resnet20@quick", "package.module:factory"], "digits"),
        ([], "digits"),
    ],
)
def test_full_names_say_their_dataset(names, dataset):
    assert zoo.implied_dataset(names) == dataset


def test_full_names_of_two_datasets_are_refused():
    with pytest.raises(UserError, match="for cifar10 and digits: choose one with --dataset"):
        zoo.implied_dataset(["a.cifar10_quick_seed0", "a.digits_digits_seed0"])


def test_a_full_name_for_another_dataset_says_which(command, tmp_path):
    name = "in_resnet20.cifar10_quick_seed0"
    for argv in (("bench", "--dataset", "digits", "--models"), ("plot", "coefficients"), ("stability",)):
        status, out, err = command(*argv, name, "--out", tmp_path / "out")
        assert (status, out) == (1, "")
        assert err == f"robust-interp: {name} is a checkpoint for cifar10: give --dataset cifar10\n"


def test_a_saved_model_comes_back_bit_for_bit(tmp_path):
    checkpoint, model = save(tmp_path)
    loaded = checkpoint.load()
    assert not loaded.training
    assert list(loaded.state_dict()) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_half_precision_rounds_the_weights_once_and_leaves_the_counters(tmp_path):
    checkpoint, model = save(tmp_path, half=True)
    stored = load_file(checkpoint.folder / WEIGHTS)
    loaded = checkpoint.load().state_dict()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            assert stored[name].dtype == torch.float16
            assert torch.equal(loaded[name], tensor.half().float()), name
        else:
            assert loaded[name].item() == 12345
    assert (checkpoint.folder / WEIGHTS).stat().st_size < 0.55 * sum(
        4 * tensor.numel() for tensor in model.state_dict().values()
    )


def test_arguments_of_the_architecture_come_back(tmp_path):
    checkpoint, model = save(tmp_path, lambda_init=(0.6, 0.7))
    loaded = checkpoint.load()
    found = loaded.interpolation_coefficients()
    assert found
    assert all(0.6 <= value.item() <= 0.7 for value in found.values())
    assert {name: value.item() for name, value in found.items()} == {
        name: value.item() for name, value in model.interpolation_coefficients().items()
    }


def test_the_folder_holds_the_three_files_for_everyone_and_no_pickle(tmp_path):
    mask = os.umask(0o022)
    try:
        checkpoint, _ = save(tmp_path)
    finally:
        os.umask(mask)
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == [CONFIG, WEIGHTS, RECORD]
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    for path in checkpoint.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path.name


def test_timm_loads_the_weights_by_its_own_means(tmp_path):
    import timm

    checkpoint, model = save(tmp_path)
    cfg = checkpoint.config["pretrained_cfg"] | {"file": str(checkpoint.folder / WEIGHTS)}
    loaded = timm.create_model(
        "in_resnet14",
        pretrained=True,
        num_classes=10,
        in_chans=1,
        pretrained_cfg=cfg,
        pretrained_cfg_overlay={},
    )
    assert torch.equal(loaded.state_dict()["fc.weight"], model.state_dict()["fc.weight"])


def test_the_hash_is_that_of_the_shipped_file(tmp_path):
    import hashlib

    checkpoint, _ = save(tmp_path)
    assert checkpoint.sha256 == hashlib.sha256((checkpoint.folder / WEIGHTS).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("in_resnet20.digits_digits_seed4", ("in_resnet20", "digits", "digits", 4)),
        ("lambda_in_resnet110.cifar10_paper_seed12", ("lambda_in_resnet110", "cifar10", "paper", 12)),
        (
            "in_resnet20_gating_sig.cifar100_quick_3epochs_seed0",
            ("in_resnet20_gating_sig", "cifar100", "quick_3epochs", 0),
        ),
    ],
)
def test_a_folders_name_says_what_it_holds(tmp_path, name, parts):
    found = Checkpoint.at(tmp_path / name)
    assert (found.architecture, found.dataset, found.recipe, found.seed) == parts
    assert found.name == name


@pytest.mark.parametrize(
    "name",
    [
        "in_resnet20",
        "in_resnet20.digits_digits",
        "in_resnet20.digits_seed0",
        "in_resnet20.digits_digits_seed",
        "in_resnet20.digits_digits_seed0.part7",
        ".in_resnet20.digits_digits_seed0.part7",
        "in_resnet20.digits_digits_seed-1",
        "README.md",
    ],
)
def test_other_names_are_no_checkpoints(tmp_path, name):
    assert Checkpoint.at(tmp_path / name) is None


def test_saving_again_is_refused_and_leaves_the_first(tmp_path):
    checkpoint, _ = save(tmp_path)
    before = (checkpoint.folder / WEIGHTS).read_bytes()
    with pytest.raises(UserError, match="cannot write"):
        save(tmp_path, seed=1)
    assert (checkpoint.folder / WEIGHTS).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]


def test_saving_where_nothing_can_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as refusal:
        save(tmp_path / "file")
    one_line(refusal, "cannot write", tmp_path / "file")
    with pytest.raises(UserError) as refusal:
        zoo.check_writable(tmp_path / "file" / "in_resnet14.digits_quick_seed0")
    one_line(refusal, "cannot write")


def test_a_folder_that_is_there_is_not_trained_over(tmp_path):
    checkpoint, _ = save(tmp_path)
    with pytest.raises(UserError) as refusal:
        zoo.check_writable(checkpoint.folder)
    one_line(refusal, "exists already", checkpoint.folder)


# Broken checkpoints.


def flip(path, at=-100):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def empty(path):
    path.write_bytes(b"")


def html(path):
    path.write_text("<!DOCTYPE html><html><title>Quota exceeded</title></html>")


@pytest.mark.parametrize("spoil", [flip, truncate, empty, html, os.unlink])
def test_weights_that_are_not_the_saved_ones_are_refused_by_name(tmp_path, spoil):
    checkpoint, _ = save(tmp_path)
    spoil(checkpoint.folder / WEIGHTS)
    fresh = Checkpoint.at(checkpoint.folder)
    with pytest.raises(UserError) as refusal:
        _ = fresh.sha256
    one_line(refusal, "broken checkpoint", fresh.name, fresh.folder / WEIGHTS)


@pytest.mark.parametrize("spoil", [truncate, empty, html, lambda path: flip(path, 3)])
def test_unreadable_safetensors_are_refused_by_name(tmp_path, spoil):
    checkpoint, _ = save(tmp_path)
    spoil(checkpoint.folder / WEIGHTS)
    with pytest.raises(UserError) as refusal:
        Checkpoint.at(checkpoint.folder).load()
    one_line(refusal, checkpoint.folder / WEIGHTS)


@pytest.mark.parametrize("file", [CONFIG, RECORD])
@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '"text"', "\x00\xff"])
def test_a_missing_or_broken_description_is_refused_by_name(tmp_path, file, content):
    checkpoint, _ = save(tmp_path)
    path = checkpoint.folder / file
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="latin-1")
    fresh = Checkpoint.at(checkpoint.folder)
    with pytest.raises(UserError) as refusal:
        _ = fresh.config if file == CONFIG else fresh.record
    one_line(refusal, "broken checkpoint", fresh.name, path)


def test_a_description_without_the_normalisation_is_refused_by_name(tmp_path):
    checkpoint, _ = save(tmp_path)
    path = checkpoint.folder / CONFIG
    path.write_text(json.dumps({"architecture": "in_resnet14", "pretrained_cfg": {"num_classes": 10}}))
    with pytest.raises(UserError) as refusal:
        Checkpoint.at(checkpoint.folder).load()
    one_line(refusal, "broken checkpoint", path, "lacks input_size, mean, std")


def test_a_broken_bundled_checkpoint_breaks_no_import(alone):
    whole, _ = save(alone / "bundled")
    broken, _ = save(alone / "bundled", "in_resnet14.digits_quick_seed1")
    (broken.folder / CONFIG).write_text("{")
    cfgs = pretrained.bundled_cfgs()
    assert list(cfgs) == [whole.name]
    assert cfgs[whole.name]["file"] == str(whole.folder / WEIGHTS)
    with pytest.raises(UserError, match="broken checkpoint"):
        Checkpoint.at(broken.folder).load()


def test_a_folder_under_another_architectures_name_is_refused(tmp_path):
    checkpoint, _ = save(tmp_path, "in_resnet14.digits_quick_seed0")
    other = checkpoint.folder.rename(tmp_path / "lambda_in_resnet14.digits_quick_seed0")
    with pytest.raises(UserError) as refusal:
        Checkpoint.at(other).load()
    one_line(refusal, "broken checkpoint", other / CONFIG, "describes another architecture, 'in_resnet14'")


def test_a_checkpoint_of_another_architecture_lists_the_keys(tmp_path):
    checkpoint, _ = save(tmp_path, "in_resnet20.digits_quick_seed0")
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(network("in_resnet14"), checkpoint.folder / WEIGHTS)
    message = one_line(refusal, checkpoint.folder / WEIGHTS, "keys unexpected", "...")
    assert message.count("stages.") == 5


def test_only_the_first_five_missing_keys_are_listed(tmp_path):
    own = network("preact_resnet14")
    state = own.state_dict()
    missing = [key for key in list(state)[3:11] if not key.endswith("num_batches_tracked")]  # may be missing
    assert len(missing) == 7
    save_file({key: value for key, value in state.items() if key not in missing}, tmp_path / "w.safetensors")
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(own, tmp_path / "w.safetensors")
    one_line(refusal, f"7 keys missing: {', '.join(missing[:5])}, ...")
    save_file({**state, "extra.a": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(own, tmp_path / "w.safetensors")
    assert one_line(refusal, "1 keys unexpected: extra.a").endswith("extra.a")


def test_another_number_of_classes_is_refused_and_nothing_is_half_loaded(tmp_path):
    other = network(num_classes=100, seed=1)
    save_file(other.state_dict(), tmp_path / "w.safetensors")
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(model, tmp_path / "w.safetensors")
    one_line(refusal, "of another shape: fc.weight, fc.bias")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    ],
    ids=["bare", "state_dict", "model", "DataParallel", "both"],
)
def test_a_state_dict_is_found_in_its_usual_wrappers(tmp_path, wrap):
    source, model = network(seed=1), network(seed=2)
    torch.save(wrap(source.state_dict()), tmp_path / "w.pt")
    zoo.load_weights(model, tmp_path / "w.pt")
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path, zipped):
    trap = tmp_path / "trap"
    path = tmp_path / "w.pt"
    torch.save({"fc.weight": Malicious(trap)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(network(), path)
    one_line(refusal, path)
    assert not trap.exists()


def test_a_whole_pickled_model_is_refused(tmp_path):
    torch.save(network(), tmp_path / "w.pth")
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(network(), tmp_path / "w.pth")
    # torch's own words name the class; where they change, weights_files no longer finds it in them
    one_line(refusal, tmp_path / "w.pth", "contains a pickled robust_interp.models.in_resnet.PreActResNet")


@pytest.mark.parametrize(
    "content",
    [[1, 2], torch.zeros(3), {"a": 1}, {"state_dict": 3}, {1: torch.zeros(3)}, {("a",): torch.zeros(1)}],
    ids=["list", "tensor", "number", "wrapper", "int key", "tuple key"],
)
def test_what_is_no_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(network(), tmp_path / "w.pt")
    one_line(refusal, tmp_path / "w.pt")


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
def test_a_file_that_is_missing_empty_or_html_is_refused(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    with pytest.raises(UserError) as refusal:
        zoo.load_weights(network(), path)
    one_line(refusal, "there is no checkpoint file", path)
    for spoil in (empty, html):
        spoil(path)
        with pytest.raises(UserError) as refusal:
            zoo.load_weights(network(), path)
        one_line(refusal, path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_damage_anywhere_in_a_file_ends_in_one_line_or_in_weights(tmp_path, form):
    model, chance = torch.nn.Linear(3, 2), random.Random(0)
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    if form == "safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=form == "zip")
    whole, messages = path.read_bytes(), []
    for _ in range(150):
        damaged = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            zoo.load_weights(model, path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all(str(path) in message and "\n" not in message for message in messages)


# The zoo.


def place(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


NAMES = (
    "in_resnet14.cifar10_quick_seed0",
    "in_resnet14.digits_digits_seed0",
    "in_resnet14.digits_digits_seed1",
    "in_resnet14.digits_digits_seed10",
    "in_resnet14.digits_digits_seed2",
    "in_resnet20.digits_digits_seed0",
    "lambda_in_resnet14.digits_digits_seed0",
    "preact_resnet14.digits_digits_seed0",
)


def test_checkpoints_are_listed_in_order_of_name_and_seed(alone):
    place(alone / "model_zoo", *NAMES, "not-a-checkpoint", ".in_resnet14.digits_digits_seed7.part1")
    found = zoo.checkpoints()
    assert [c.name for c in found] == [*NAMES[:3], NAMES[4], NAMES[3], *NAMES[5:]]  # seed 2 before seed 10
    assert [c.name for c in zoo.checkpoints(dataset="cifar10")] == [NAMES[0]]
    assert zoo.checkpoints(dataset="cifar100") == []


def test_the_first_folder_wins(alone):
    only = "in_resnet14.digits_digits_seed0"
    for where in ("mine", "model_zoo", "bundled"):
        place(alone / where, only, f"in_resnet20.digits_{where.replace('_', '')}_seed0")
    found = {c.name: c.folder.parent.name for c in zoo.checkpoints(alone / "mine")}
    assert found == {
        only: "mine",
        "in_resnet20.digits_mine_seed0": "mine",
        "in_resnet20.digits_modelzoo_seed0": "model_zoo",
        "in_resnet20.digits_bundled_seed0": "bundled",
    }
    assert {c.folder.parent.name for c in zoo.checkpoints() if c.name == only} == {"model_zoo"}


@pytest.mark.parametrize(
    "choose",
    [
        lambda dataset: resolve(["all"], ResolveOptions(), replace(data.load("digits"), name=dataset)),
        lambda dataset: inputs.checkpoints(["in_resnet14"], None, dataset),
        lambda dataset: inputs.singles(["in_resnet14"], None, dataset),
    ],
    ids=["to measure", "to analyse", "to draw"],
)
def test_where_a_dataset_has_no_checkpoint_it_is_told_how_to_make_one(choose, alone):
    place(alone / "model_zoo", "in_resnet14.digits_digits_seed0")
    with pytest.raises(UserError) as refusal:
        choose("cifar100")
    one_line(refusal, "no checkpoint for cifar100", "robust-interp train", "--dataset cifar100", "--zoo")


def test_a_zoo_folder_that_is_not_there_is_refused(alone):
    with pytest.raises(UserError) as refusal:
        zoo.checkpoints(alone / "nowhere")
    one_line(refusal, "there is no zoo folder", alone / "nowhere")


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["all"], [1, 2, 4, 3, 5, 6, 7]),
        (["in_resnet14"], [1, 2, 4, 3]),
        (["in_resnet*"], [1, 2, 4, 3, 5]),
        (["*in_resnet14"], [1, 2, 4, 3, 6]),
        (["*_seed0"], [1, 5, 6, 7]),
        (["in_resnet14.digits_digits_seed1"], [2]),
        (["in_resnet14.*_seed[12]"], [2, 4]),
        (["preact_resnet14", "in_resnet20", "in_resnet20"], [5, 7]),
        (["in_resnet14", "all"], [1, 2, 4, 3, 5, 6, 7]),
    ],
)
def test_models_are_chosen_by_all_architecture_name_or_glob(alone, patterns, chosen):
    place(alone / "model_zoo", *NAMES)
    found = zoo.select(patterns, zoo.checkpoints(dataset="digits"))
    assert [c.name for c in found] == [NAMES[at] for at in chosen]


def test_a_folder_can_be_the_only_one(alone):
    place(alone / "model_zoo", "in_resnet14.digits_quick_seed0")
    mine = place(alone / "mine", "in_resnet14.digits_quick_seed1", "in_resnet14.cifar10_quick_seed0")
    assert [c.seed for c in zoo.checkpoints(mine, "digits", only=True)] == [1]
    assert {0, 1} <= {c.seed for c in zoo.checkpoints(mine, "digits")}
    assert [c.dataset for c in zoo.checkpoints_for("cifar10", mine, only=True)] == ["cifar10"]
    with pytest.raises(UserError, match=r"no checkpoint for cifar100 in .*mine: train one"):
        zoo.checkpoints_for("cifar100", mine, only=True)
    with pytest.raises(UserError, match="name it with --zoo"):
        zoo.checkpoints(dataset="digits", only=True)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("in_resnet14@quick", [0, 1]),
        ("in_resnet14@digits", [2]),
        ("all@quick", [0, 1, 3]),
        ("*_seed0@q*", [0, 3]),
        ("in_resnet14@*", [0, 1, 2]),
    ],
)
def test_a_recipe_after_the_name_chooses_among_those_that_share_it(alone, pattern, chosen):
    names = [f"in_resnet14.digits_{end}" for end in ("quick_seed0", "quick_seed1", "digits_seed0")]
    names.append("preact_resnet14.digits_quick_seed0")
    place(alone / "model_zoo", *names)
    candidates = zoo.checkpoints(alone / "model_zoo", "digits")
    candidates = [c for c in candidates if c.architecture.endswith("resnet14")]
    assert {c.name for c in zoo.select([pattern], candidates)} == {names[at] for at in chosen}
    with pytest.raises(UserError, match="unknown recipe 'qick'; did you mean quick"):
        zoo.select(["in_resnet14@qick"], candidates)
    with pytest.raises(UserError, match="unknown model 'in_resnet41'; did you mean in_resnet14"):
        zoo.select(["in_resnet41@quick"], candidates)
    with pytest.raises(UserError, match="unknown recipe ''; known: digits, quick"):
        zoo.select(["in_resnet14@"], candidates)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("in_resnet41", ["unknown model 'in_resnet41'", "did you mean", "in_resnet14"]),
        ("zzz", ["unknown model 'zzz'", "known:", "in_resnet14", "preact_resnet14"]),
        ("zzz*", ["unknown model 'zzz*'", "known:"]),
        ("In_ResNet14", ["unknown model", "in_resnet14"]),
        ("plain_net14", ["plain_net14 has no checkpoint for digits", "robust-interp train", "--checkpoint"]),
    ],
)
def test_a_name_without_a_checkpoint_is_answered_with_what_there_is(alone, pattern, parts):
    place(alone / "model_zoo", *NAMES)
    with pytest.raises(UserError) as refusal:
        zoo.select(["in_resnet14", pattern], zoo.checkpoints(dataset="digits"))
    one_line(refusal, *parts)


def test_an_unknown_architecture_lists_near_names():
    with pytest.raises(UserError) as refusal:
        zoo.create("in_resnet14x")
    one_line(refusal, "unknown model 'in_resnet14x'", "in_resnet14")
    with pytest.raises(UserError) as refusal:
        zoo.create("in_resnet14", lamda_init=(0, 1))
    one_line(refusal, "cannot build in_resnet14", "lamda_init")


def test_a_folder_made_with_other_arguments_is_not_taken_for_the_same(tmp_path):
    name = "in_resnet14.digits_quick_seed0"
    assert zoo.made_with(tmp_path / name, {}) is None
    checkpoint, _ = save(tmp_path, lambda_init=(0.1, 0.2))
    assert zoo.made_with(tmp_path / name, {"lambda_init": (0.1, 0.2)}).folder == checkpoint.folder
    with pytest.raises(UserError) as refusal:
        zoo.made_with(tmp_path / name, {})
    one_line(refusal, tmp_path / name, "choose another --out")


def test_the_bundled_digits_checkpoints_are_whole():
    found = zoo.checkpoints(dataset="digits")
    made = {(c.architecture, c.seed) for c in found if c.recipe == "digits"}
    families = ("preact_resnet20", "in_resnet20", "lambda_in_resnet20", "plain_net20")
    assert made >= {(family, seed) for family in families for seed in range(5)}
    for checkpoint in found:
        assert checkpoint.sha256 == checkpoint.record["weights_sha256"]
        assert checkpoint.record["clean_n"] == 450
        assert checkpoint.record["clean_accuracy"] > 95
        assert checkpoint.record["seed"] == checkpoint.seed
        assert checkpoint.config["architecture"] == checkpoint.architecture
        assert (checkpoint.folder / WEIGHTS).stat().st_size < 1_000_000


def test_timm_knows_the_bundled_checkpoints_by_their_tags():
    import timm

    import robust_interp.models  # noqa: F401

    (first, *_) = [c for c in zoo.checkpoints(dataset="digits") if c.folder.parent.samefile(zoo.bundled())]
    assert first.name in timm.list_pretrained()
    model = timm.create_model(first.name, pretrained=True)
    for name, tensor in first.load().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_bare_name_stands_for_the_longest_trained_cifar_10_checkpoint_of_the_lowest_seed(alone):
    for name, epochs, clean in (
        ("in_resnet14.cifar10_quick_seed1", 22, 99.0),
        ("in_resnet14.cifar10_quick_seed2", 22, 99.9),  # the best on the test set, which must not count
        ("in_resnet14.cifar10_quick_12epochs_seed0", 12, 99.5),
        ("in_resnet14.digits_quick_seed0", 60, 99.5),
        ("in_resnet20.cifar10_quick_seed0", 160, 99.5),
    ):
        save(alone / "bundled", name, record={"curve": [{"epoch": 1}] * epochs, "clean_accuracy": clean})
    assert pretrained.default_tag("in_resnet14") == "cifar10_quick_seed1"
    assert pretrained.default_tag("preact_resnet14") is None


def test_a_broken_checkpoint_is_no_bare_names(alone):
    for seed, curve in ((0, [{"epoch": 1}] * 22), (1, [{"epoch": 1}] * 12), (2, "no curve")):
        save(alone / "bundled", f"in_resnet14.cifar10_quick_seed{seed}", record={"curve": curve})
    (alone / "bundled" / "in_resnet14.cifar10_quick_seed0" / RECORD).write_text("{")
    assert pretrained.default_tag("in_resnet14") == "cifar10_quick_seed1"
    (alone / "bundled" / "in_resnet14.cifar10_quick_seed1" / CONFIG).write_text("{")
    assert pretrained.default_tag("in_resnet14") is None


@pytest.mark.slow
def test_timm_gives_a_bare_name_these_weights_with_their_normalisation():
    import timm

    import robust_interp.models  # noqa: F401

    named = timm.create_model(f"in_resnet20.{pretrained.default_tag('in_resnet20')}", pretrained=True)
    bare = timm.create_model("in_resnet20", pretrained=True)
    for name, tensor in named.state_dict().items():
        assert torch.equal(bare.state_dict()[name], tensor), name
    assert tuple(bare.pretrained_cfg["mean"]) == data.DATASETS["cifar10"].mean
    assert bare.pretrained_cfg["tag"] == pretrained.default_tag("in_resnet20")
    assert timm.create_model("in_resnet20", pretrained=True, num_classes=7).fc.out_features == 7
    with pytest.raises(RuntimeError, match="pretrained"):
        timm.create_model("exp_in_resnet14", pretrained=True)


def test_copying_a_checkpoint_keeps_its_identity(alone):
    checkpoint, _ = save(alone / "one")
    shutil.copytree(alone / "one", alone / "two")
    assert Checkpoint.at(alone / "two" / checkpoint.name).sha256 == checkpoint.sha256
    assert json.loads((alone / "two" / checkpoint.name / RECORD).read_text()) == checkpoint.record
