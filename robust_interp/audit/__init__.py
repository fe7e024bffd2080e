"""The audit: measurements and checks of whether a robust accuracy can be believed."""
