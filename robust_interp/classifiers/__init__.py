"""Models as classifiers of pixels, ensembles of classifiers, and the loading of models by name."""
