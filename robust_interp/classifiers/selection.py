"""The targets that a run's models resolve to, without the checkpoints that cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import nn

from robust_interp import data
from robust_interp.classifiers.resolve import OnRandom, ResolveOptions, refuse, resolve
from robust_interp.classifiers.target import LoadAttempts, Target
from robust_interp.core.errors import UserError
from robust_interp.core.work import ProgressCallback, no_progress, with_progress


class Selection:
    """The targets of a run, and the names or modules that they were resolved from.

    Args:
        models, options, dataset, progress, on_random: As for `resolve`.

    Attributes:
        models, options: What the targets are resolved from.
        targets: The targets.
        failed: The errors of the checkpoints that were left out, by the keys of their targets.

    Raises:
        UserError: in the cases of `resolve`.
    """

    def __init__(
        self,
        models: Sequence[str] | Mapping[str, nn.Module] | None,
        options: ResolveOptions,
        dataset: data.Dataset,
        progress: ProgressCallback = no_progress,
        on_random: OnRandom = refuse,
    ) -> None:
        self.models, self.options = models, options
        self._dataset, self._on_random = dataset, on_random
        self.targets = resolve(models, options, dataset, progress, on_random)
        self.failed: dict[str, UserError] = {}

    @property
    def is_incomplete(self) -> bool:
        """Whether a checkpoint that was asked for was left out, since it is broken."""
        return any(target.left_out for target in self.targets)

    def load(
        self,
        load: Callable[[Target], object],
        progress: ProgressCallback = no_progress,
        needed: Callable[[list[Target]], list[Target]] = list,
    ) -> None:
        """Load the targets; leave out checkpoints that fail, and form ensembles without them.

        Args:
            load: Loads one target.
            progress: Called with the progress, 0 to 1, and the name of the model.
            needed: Returns those of the targets that must be loaded; called again when some were left out.

        Raises:
            UserError: the error of a model that is named itself, or if no model is left.
        """
        while failed := _failures(needed(self.targets), load, progress):
            self.failed |= failed  # what failed in an earlier pass would come back, and fail again
            tried: LoadAttempts = {target.key: target.load for target in self.targets} | dict(self.failed)
            found = resolve(self.models, self.options, self._dataset, on_random=self._on_random, tried=tried)
            for target in found:
                if target.key in self.failed:
                    raise self.failed[target.key]
            self.targets = found


def _failures(
    targets: Iterable[Target], load: Callable[[Target], object], progress: ProgressCallback
) -> dict[str, UserError]:
    """Load targets, and return the error of each one that cannot be measured, by its key."""
    failed = {}
    for target in with_progress(list(targets), progress, lambda target: target.card.label):
        try:
            load(target)
        except UserError as error:
            failed[target.key] = error
    return failed
