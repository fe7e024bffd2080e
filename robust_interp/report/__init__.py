"""The report: one page that opens from disk, with its figures and tables beside it.

Everything in it comes from stored results and from the records of checkpoints: nothing here imports torch.
`measured` turns scores into the tables that figures are drawn from, `records` reads what is told elsewhere,
`definitions` says what the columns mean, and `page` puts it all together.
"""
