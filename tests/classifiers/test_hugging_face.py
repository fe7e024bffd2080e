"""``hf:``: image classifiers of transformers, from folders, with what their processors do to pixels."""

import shutil
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.own_images import picture, write_folder
from support.prerequisites import needed

import robust_interp
from robust_interp import data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.image_processors import cfg_of, with_its_images
from robust_interp.classifiers.prefixes import PREFIXES
from robust_interp.classifiers.target import Context
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.data import preprocessing

transformers = needed("transformers")

N = 40
QUICK = {"attacks": "fgsm", "corruptions": "none", "eps": (16 / 255,), "n": N}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def vit(channels=1, side=8, labels=10, seed=0, **more):
    torch.manual_seed(seed)
    size = {"image_size": side, "patch_size": 4, "num_channels": channels, "num_labels": labels}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**TINY, **size, **more)).eval()
    torch.nn.init.normal_(model.classifier.weight)
    return model


def saved(folder, model, processor=None):
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def of_digits(**more):
    return transformers.ViTImageProcessor(
        image_mean=[0.3], image_std=[0.4], size={"height": 8, "width": 8}, **more
    )


def told(name, dataset="digits", **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = robust_interp.evaluate(name, dataset, **QUICK | options)
    return table, [str(warning.message) for warning in caught]


def refused(name, *parts, dataset="digits"):
    with pytest.raises(UserError) as caught:
        robust_interp.evaluate(name, dataset, **QUICK)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


@pytest.mark.slow
@torch.no_grad()
def test_a_folder_is_measured_with_the_normalisation_of_its_processor(tmp_path, digits_test):
    model = vit()
    folder = saved(tmp_path / "mine", model, of_digits())
    table, said = told(f"hf:{folder}")
    images, labels = digits_test[0][:N], digits_test[1][:N]
    right = model((images - 0.3) / 0.4).logits.argmax(1) == labels
    assert (
        dict(zip(table["perturbation"], table["accuracy"], strict=True))["clean"]
        == 100 * right.double().mean()
    )
    assert set(table["model"]) == {"mine"}
    assert not any("no normalisation" in line or "is made for" in line for line in said)
    given, said = told(f"hf:{folder}", mean=(0.1,), std=(0.9,))
    assert any("the given mean and std are applied instead" in line for line in said)
    right = model((images - 0.1) / 0.9).logits.argmax(1) == labels
    assert given["accuracy"][0] == 100 * right.double().mean()


@pytest.mark.slow
def test_a_folder_that_says_no_normalisation_is_warned_of(tmp_path):
    said = told(f"hf:{saved(tmp_path / 'mine', vit())}", attacks="none")[1]
    assert any("looks like a Hugging Face model; no normalisation is applied" in line for line in said)


@pytest.mark.slow
def test_a_model_is_the_same_wherever_its_folder_lies(tmp_path):
    saved(tmp_path / "a" / "mine", vit(), of_digits())
    shutil.copytree(tmp_path / "a" / "mine", tmp_path / "b" / "mine")
    keys = [
        Benchmark(Request(models=(f"hf:{tmp_path / place / 'mine'}",), **QUICK)).plan.cells[0].key
        for place in "ab"
    ]
    assert keys[0] == keys[1]


PROCESSORS = {
    "ViT": lambda t: t.ViTImageProcessor(image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]),
    "from -1 to 1": lambda t: t.ViTImageProcessor(do_normalize=False, rescale_factor=2 / 255),
    "bytes": lambda t: t.ViTImageProcessor(do_rescale=False, image_mean=[99.0] * 3, image_std=[50.0] * 3),
    "ConvNeXT": lambda t: t.ConvNextImageProcessor(),
    "CLIP": lambda t: t.CLIPImageProcessor(),
    "MobileViT": lambda t: t.MobileViTImageProcessor(),
    "EfficientNet": lambda t: t.EfficientNetImageProcessor(),
    "EfficientNet with an offset": lambda t: t.EfficientNetImageProcessor(
        rescale_offset=True, rescale_factor=1 / 127.5, include_top=False
    ),
    "EfficientNet with an offset that is not applied": lambda t: t.EfficientNetImageProcessor(
        rescale_offset=True, do_rescale=False, image_mean=[99.0] * 3, image_std=[50.0] * 3, include_top=False
    ),
    "MobileViT, which ignores a normalisation": lambda t: t.MobileViTImageProcessor(do_normalize=True),
    "PP-LCNet": lambda t: t.PPLCNetImageProcessor(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
@torch.no_grad()
def test_pixels_are_what_the_processor_makes_of_them(tmp_path, name):
    model, processor = vit(channels=3), PROCESSORS[name](transformers)
    folder = saved(tmp_path / "mine", model, processor)
    images = np.random.default_rng(0).integers(0, 256, (32, 3, 8, 8), np.uint8)
    labels = np.arange(32) % 10
    target = PREFIXES["hf"](str(folder), Context(data.from_arrays(images, labels, 10)))
    theirs = processor(list(images), do_resize=False, do_center_crop=False, return_tensors="pt")
    expected = model(theirs["pixel_values"].float()).logits
    found = target.load("cpu")(torch.from_numpy(images) / 255)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ViT", "resize=224,crop=224,bilinear,squash"),
        ("ConvNeXT", "resize=384,crop=384,bicubic,squash"),
        ("CLIP", "resize=224,crop=224,bicubic"),
    ],
)
def test_what_a_row_says_of_a_processors_resize(tmp_path, name, expected):
    folder = saved(tmp_path / "mine", vit(channels=3), PROCESSORS[name](transformers))
    images = np.zeros((32, 3, 8, 8), np.uint8)
    target = PREFIXES["hf"](str(folder), Context(data.from_arrays(images, np.arange(32) % 10, 10)))
    cfg = target.load("cpu").model.pretrained_cfg
    assert str(preprocessing.of_model(cfg)) == expected


def resnet(channels=3):
    """A model of images of any size."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        num_channels=channels,
        embedding_size=4,
        hidden_sizes=[4],
        depths=[1],
        num_labels=10,
        layer_type="basic",
    )
    return transformers.ResNetForImageClassification(config)


BOTH, CROP = {"height": 32, "width": 32}, {"height": 28, "width": 28}
SHORT = {"shortest_edge": 28}
RESIZES = {
    "ViT": ("ViT", {"size": BOTH}),
    "ViT, oblong": ("ViT", {"size": {"height": 32, "width": 20}}),
    "ViT, to the nearest pixel": ("ViT", {"size": {"height": 31, "width": 31}, "resample": 0}),
    "ViT, Lanczos": ("ViT", {"size": BOTH, "resample": 1}),
    "DeiT": ("DeiT", {"size": BOTH, "crop_size": CROP}),
    "DeiT, half a pixel": ("DeiT", {"size": {"height": 31, "width": 31}, "crop_size": CROP}),
    "DeiT, no crop": ("DeiT", {"size": BOTH, "do_center_crop": False}),
    "DeiT, oblong": (
        "DeiT",
        {"size": {"height": 64, "width": 32}, "crop_size": {"height": 56, "width": 28}},
    ),
    "BEiT": ("Beit", {"size": BOTH, "crop_size": CROP, "do_center_crop": True}),
    "LeViT": ("Levit", {"size": SHORT, "crop_size": CROP}),
    "LeViT, both sides": ("Levit", {"size": BOTH, "crop_size": CROP}),
    "ConvNeXT": ("ConvNext", {"size": SHORT}),
    "ConvNeXT, another crop": ("ConvNext", {"size": SHORT, "crop_pct": 0.95}),
    "ConvNeXT, large": ("ConvNext", {"size": {"shortest_edge": 384}}),
    "PoolFormer": ("PoolFormer", {"size": SHORT, "crop_size": CROP}),
    "PoolFormer, large": (
        "PoolFormer",
        {"size": {"shortest_edge": 384}, "crop_size": {"height": 384, "width": 384}},
    ),
    "PoolFormer, both sides": ("PoolFormer", {"size": BOTH, "crop_size": CROP}),
    "BiT": ("Bit", {"size": {"shortest_edge": 32}, "crop_size": CROP}),
    "BiT, a division with a remainder": (
        "Bit",
        {"size": {"shortest_edge": 49}, "crop_size": {"height": 48, "width": 48}},
    ),
    "CLIP": ("CLIP", {"size": SHORT, "crop_size": CROP}),
    "MobileNetV1": ("MobileNetV1", {"size": {"shortest_edge": 32}, "crop_size": CROP}),
    "MobileNetV2": ("MobileNetV2", {"size": {"shortest_edge": 32}, "crop_size": CROP}),
    "MobileViT": ("MobileViT", {"size": {"shortest_edge": 32}, "crop_size": CROP}),
    "MobileViT, black borders": ("MobileViT", {"size": {"shortest_edge": 28}, "crop_size": BOTH}),
    "EfficientNet": ("EfficientNet", {"size": BOTH}),
    "EfficientNet, cropped": ("EfficientNet", {"size": BOTH, "crop_size": CROP, "do_center_crop": True}),
    "PVT": ("Pvt", {"size": BOTH}),
    "SegFormer": ("Segformer", {"size": BOTH}),
    "SigLIP": ("Siglip", {"size": BOTH}),
}
SIZES = ((60, 35), (33, 50), (20, 26), (41, 41), (28, 31), (31, 28), (90, 47), (50, 75), (29, 80), (70, 69))


def made(family, **settings):
    """The image processor of a family. It makes a level of 255 2/255, that of EfficientNet 4/255."""
    normalisation = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5] * 3}
    return getattr(transformers, f"{family}ImageProcessor")(**settings, **normalisation)


def of_files(folder, sizes=SIZES, channels=3):
    """Images of noise, and the folder of their files, one of each class.

    Where a bicubic resize overshoots black or white, Pillow and torchvision differ: the noise is grey.
    """
    rng = np.random.default_rng(0)
    images = [rng.integers(80, 176, (channels, *size), dtype=np.uint8) for size in sizes]
    return [picture(image) for image in images], write_folder(folder, images, range(len(sizes)))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "settings"), RESIZES.values(), ids=RESIZES)
@torch.no_grad()
def test_image_files_become_what_the_processor_makes_of_them(tmp_path, family, settings):
    processor = made(family, **settings)
    folder = saved(tmp_path / "mine", resnet(), processor)
    images, source = of_files(tmp_path / "val")
    dataset = data.open_source(f"folder:{source}", data.SourceOptions(workers=0))
    target = PREFIXES["hf"](str(folder), Context(dataset))
    model, got = target.load("cpu"), []
    inner = next(each for each in model.modules() if type(each).__name__ == "ResNetForImageClassification")
    inner.register_forward_pre_hook(lambda _, given: got.append(given[0]))
    model(torch.from_numpy(target.dataset.pixels(0, len(SIZES))))
    expected = torch.cat([processor(image, return_tensors="pt")["pixel_values"] for image in images])
    assert got[0].shape == expected.shape
    apart = (got[0] - expected).abs()
    if settings.get("resample") == 0:  # a few points lie halfway between two pixels
        assert (apart > 0.01).float().mean() < 0.1
    else:
        assert apart.max() < 1.5 * 4 / 255


NOT_EXPRESSED = {
    "crops first": ("Perceiver", {"size": CROP, "crop_size": BOTH}),
    "to a multiple": ("TextNet", {"size": SHORT, "size_divisor": 32}),
    "fits the longer side, with borders": ("Donut", {"size": BOTH}),
    "rounds the longer side": ("PPLCNet", {"resize_short": 32, "crop_size": CROP}),
    "patches": ("Siglip2", {}),
    "no resize": ("ViT", {"size": BOTH, "do_resize": False}),
    "borders": ("ViT", {"size": BOTH, "do_pad": True, "pad_size": {"height": 40, "width": 40}}),
    "a longest side too": (
        "CLIP",
        {"size": {"shortest_edge": 28, "longest_edge": 30}, "do_center_crop": False},
    ),
    "a far longest side too": ("CLIP", {"size": {"shortest_edge": 28, "longest_edge": 100}}),
    "cannot resize so": ("ViT", {"size": BOTH, "resample": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("family", "settings"), NOT_EXPRESSED.values(), ids=NOT_EXPRESSED)
def test_a_processor_that_does_something_else_to_files_is_refused(tmp_path, family, settings, channels):
    folder = saved(tmp_path / "mine", resnet(channels), made(family, **settings))
    source = of_files(tmp_path / "val", channels=channels)[1]
    dataset = data.open_source(f"folder:{source}", data.SourceOptions(workers=0))
    with pytest.raises(
        UserError, match=f"its {family}ImageProcessor makes of image files: .*--resize"
    ) as caught:
        PREFIXES["hf"](str(folder), Context(dataset))
    assert "\n" not in str(caught.value)
    chosen = data.SourceOptions(workers=0, preprocessing=preprocessing.fixed(32, 28, None))
    context = Context(
        data.open_source(f"folder:{source}", chosen), mean=[0.5] * channels, std=[0.5] * channels
    )
    target = PREFIXES["hf"](str(folder), context)
    assert target.dataset.shape == (channels, 28, 28)  # chosen by the user


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT", "DeiT, half a pixel", "ConvNeXT", "MobileViT"])
def test_grey_files_become_what_a_processor_of_colour_images_makes_of_them(tmp_path, name):
    """The processor raises an error for grey images: it has three means, or reverses the channels."""
    family, settings = RESIZES[name]
    processor = made(family, **settings)
    images, source = of_files(tmp_path / "val", channels=1)
    theirs = [processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0, 0] for image in images]
    expected = [image if family == "MobileViT" else image * 0.5 + 0.5 for image in theirs]
    dataset = data.open_source(f"folder:{source}", data.SourceOptions(workers=0))
    folder = saved(tmp_path / "mine", resnet(1), processor)
    target = PREFIXES["hf"](str(folder), Context(dataset, mean=(0.5,), std=(0.5,)))
    found = torch.from_numpy(target.dataset.pixels(0, len(images))[:, 0])
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1.5 / 255)


class Slow(transformers.ViTImageProcessor):
    """As a processor of transformers 4: it finds no channels in a grey image, and wants a mean of each."""

    def __call__(self, image, **options):
        if image.mode == "L":
            raise ValueError("unable to infer channel dimension format")
        if self.do_normalize and len(self.image_mean) != 3:
            raise ValueError("mean must have 3 elements if it is an iterable, got 1")
        return super().__call__(image, **options)


@pytest.mark.parametrize(("mean", "std"), [([0.3], [0.4]), ([0.3] * 3, [0.4] * 3)])
def test_a_processor_of_grey_images_with_one_mean_is_tried_on_colour_ones(mean, std):
    processor = Slow(size=BOTH, image_mean=mean, image_std=std)
    cfg = cfg_of(processor, SimpleNamespace(num_labels=10), 1, 32)
    found = with_its_images(processor, cfg)
    assert found == cfg | {"crop_mode": found["crop_mode"]}
    assert (found["input_size"], found["mean"][0], found["std"][0]) == ((1, *BOTH.values()), 0.3, 0.4)
    assert processor.do_normalize  # it is not changed


@pytest.mark.slow
def test_another_size_is_remarked_on(tmp_path):
    processor = transformers.ConvNextImageProcessor(image_mean=[0.3], image_std=[0.4])
    said = told(f"hf:{saved(tmp_path / 'mine', resnet(1), processor)}")[1]
    assert any("mine is made for 384x384 images, according to its configuration" in line for line in said)


@pytest.mark.slow
def test_a_model_of_transformers_that_cannot_be_measured_is_one_line(tmp_path, monkeypatch):
    refused("hf:./nothing/here/at-all", "there is no folder ./nothing/here/at-all")
    refused("hf:~nobody_x/mine", "~nobody_x/mine cannot be used: there is no such home folder")
    refused(f"hf:{saved(tmp_path / 'many', vit(labels=7))}", "has 7 classes and takes 1 channels")
    refused(f"hf:{saved(tmp_path / 'colour', vit(3))}", "has 10 classes and takes 3 channels")
    multi = vit(problem_type="multi_label_classification")
    refused(f"hf:{saved(tmp_path / 'multi', multi)}", "is a multi-label model")
    headless = vit()
    config = headless.config
    saved(tmp_path / "headless", headless.vit)
    config.save_pretrained(tmp_path / "headless")
    refused(f"hf:{tmp_path / 'headless'}", "has no weights that fit classifier.bias, classifier.weight")
    pickled = saved(tmp_path / "pickled", vit())
    torch.save(vit().state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    refused(f"hf:{pickled}", "no weights in safetensors, and pickled ones are not read")
    (tmp_path / "empty").mkdir()
    refused(f"hf:{tmp_path / 'empty'}", f"hf:{tmp_path / 'empty'}: ")
    own = saved(tmp_path / "own", vit())
    text = (own / "config.json").read_text().replace('"vit"', '"theirs"')
    auto = '{"auto_map": {"AutoConfig": "theirs.Config"},'
    (own / "config.json").write_text(auto + text.lstrip().removeprefix("{"))
    (own / "theirs.py").write_text("raise SystemExit('run')")
    refused(f"hf:{own}", "it comes with code of its own, which is not run")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(f"hf:{own}", f"hf: needs an extra package: {install('hf')}")


@pytest.mark.slow
def test_classes_in_another_order_than_the_datasets_are_refused(tmp_path):
    names = list(data.DATASETS["cifar10"].class_names)
    dataset = data.from_arrays(np.zeros((32, 3, 8, 8), np.uint8), np.arange(32) % 10, 10, "cifar10")
    for order, fits in ((names, True), (names[::-1], False)):
        model = vit(3, id2label=dict(enumerate(order)))
        folder = saved(tmp_path / str(fits), model)
        if fits:
            assert PREFIXES["hf"](str(folder), Context(dataset)).card.members == 1
        else:
            with pytest.raises(UserError, match="class 0 is truck there and airplane in cifar10"):
                PREFIXES["hf"](str(folder), Context(dataset))
