"""Make a target of ``hf:FOLDER_OR_NAME``: a transformers image classifier, with its image processor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from robust_interp import data
from robust_interp.classifiers.image_processors import cfg_of, with_its_images
from robust_interp.classifiers.target import (
    Context,
    Target,
    check_fits,
    from_module,
    replaced_note,
    size_note,
)
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.core.paths import expanded
from robust_interp.core.texts import reason_of

_NAME_ON_THE_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def from_hugging_face(text: str, context: Context) -> Target:
    """Make a target of a transformers image classifier.

    Only safetensors are read, and no code that comes with a model is run.

    Args:
        text: A folder, or a name on the hub (downloaded, or read from the cache).
        context: The data set and the other settings of the model.

    Raises:
        UserError: if transformers is missing, there is no such model, or it cannot be measured on this data
            set.
    """
    transformers = _transformers()
    folder = expanded(text)
    place = str(folder) if folder.is_dir() else text
    if not folder.is_dir() and not _NAME_ON_THE_HUB.fullmatch(text):
        raise UserError(f"hf:{text}: there is no folder {text}")
    options = {"local_files_only": folder.is_dir(), "trust_remote_code": False}
    with _quiet(transformers):
        config = _read(text, lambda: transformers.AutoConfig.from_pretrained(place, **options))
        _check(text, config, context)
        model = _model(text, place, config, options)
        processor = _processor(place, options)
        cfg = _pretrained_cfg(text, processor, config, context) if processor else None
    for named in (model.config, *model.modules()):  # the path must not be part of the identity
        if hasattr(named, "name_or_path"):
            named.name_or_path = ""
    if cfg and cfg.pop("blue_first"):
        model = BlueFirst(model)
    name = folder.resolve().name if folder.is_dir() else text
    notes: tuple[str, ...] = ()
    if cfg:
        model.pretrained_cfg = cfg  # timm's format, which the other modules read
        context = context.preprocessed_for(cfg)
        notes = size_note(name, cfg["input_size"], context) + replaced_note(name, model, context)
    return from_module(name, model, context, notes=notes)


# Its source is hashed into the stored keys of models in it (see fingerprint.identity): do not reword it.
class BlueFirst(nn.Module):
    """A model that takes its channels in the opposite order, as of images (N, 3, H, W) in RGB.

    Args:
        model: Takes them in BGR.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(images.flip(1))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"hf: needs an extra package: {install('hf')}") from error
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the progress bars and logs of transformers; restore its settings afterwards."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read(text: str, read: Any) -> Any:
    """Call `read`, and turn any exception into a UserError of one line.

    Raises:
        UserError: if `read` fails.
    """
    try:
        return read()
    except Exception as error:  # files may be anything, and the network fails in many ways
        reason = reason_of(error)
        if "trust_remote_code" in reason:
            reason = "it comes with code of its own, which is not run"
        elif "safetensors" in reason:
            reason = (
                "it has no weights in safetensors, and pickled ones are not read: save_pretrained writes them"
            )
        raise UserError(f"hf:{text}: {reason[:300]}") from error


def _check(text: str, config: Any, context: Context) -> None:
    """Refuse a model whose configuration shows that it cannot be measured on this data set."""
    if config.model_type == "timm_wrapper":
        raise UserError(f"hf:{text} is a timm model: use timm:hf-hub:{text}, or its folder")
    if config.problem_type == "multi_label_classification":
        raise UserError(f"hf:{text} is a multi-label model: only models that choose one class are measured")
    classes = 2 if config.num_labels == 1 and context.dataset.classes == 2 else config.num_labels
    check_fits(f"hf:{text}", classes, getattr(config, "num_channels", 3), context)
    theirs = [str(config.id2label.get(at, "")).lower() for at in range(classes)]
    name = context.dataset.name
    ours = [own.lower() for own in data.DATASETS[name].class_names] if name in data.DATASETS else []
    if theirs != ours and sorted(theirs) == sorted(ours):
        at = next(at for at in range(classes) if theirs[at] != ours[at])
        raise UserError(
            f"hf:{text} has the classes in another order: class {at} is {theirs[at]} there and {ours[at]} in "
            f"{name}"
        )


def _model(text: str, place: str, config: Any, options: dict) -> Any:
    kind = _transformers().AutoModelForImageClassification
    model, found = _read(
        text,
        lambda: kind.from_pretrained(
            place, config=config, use_safetensors=True, output_loading_info=True, **options
        ),
    )
    if lacks := sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]])):
        shown = ", ".join(lacks[:3]) + (", ..." if len(lacks) > 3 else "")
        raise UserError(f"hf:{text} has no weights that fit {shown}: it is no trained image classifier")
    return model


def _processor(place: str, options: dict) -> Any:
    """Return a model's image processor; None if there is none."""
    try:
        return _transformers().AutoImageProcessor.from_pretrained(place, **options)
    except (OSError, ValueError):  # no preprocessor_config.json
        return None


def _pretrained_cfg(text: str, processor: Any, config: Any, context: Context) -> dict[str, Any]:
    """Return the settings of an image processor as a timm pretrained_cfg; see `cfg_of`.

    Raises:
        UserError: if the images are files, and no setting gives what the processor makes of them.
    """
    cfg = cfg_of(processor, config, context.channels, context.dataset.shape[-1])
    if context.preprocessed_for(cfg).dataset is context.dataset:
        return cfg  # nothing is resized: arrays, a size that the user chose, or files of the model's size
    if (found := with_its_images(processor, cfg)) is None:
        side = cfg["input_size"][1]
        raise UserError(
            f"hf:{text}: no resize and centre crop gives what its {type(processor).__name__} makes of image "
            f"files: choose them yourself, such as --resize {side} --crop {side}"
        )
    return found
