"""The report: an HTML page that opens from disk, with its figures and tables in the same folder.

All of it comes from stored results and from the records of checkpoints, so nothing here imports torch.
`curves` computes the tables of the figures, `board` the leaderboard and `provenance` all other tables.
`glossary` defines the columns, `graphics` embeds SVG files, and `page` writes the report.
"""
