"""An example plug-in. Its modules are imported when one of their names is asked for."""
