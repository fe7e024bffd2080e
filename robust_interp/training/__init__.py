"""Train networks by a recipe, several side by side and resumable, and write checkpoint folders."""
