"""Training by a recipe: several networks side by side, resumable, as checkpoint folders of the zoo."""
