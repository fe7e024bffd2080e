from robust_interp.core.unique_names import told_apart


def test_equal_names_with_several_tags_are_told_apart():
    names = ["net", "net", "other", "other", "net"]
    tags = ["@quick", "@paper", "@quick", "@quick", ""]
    assert told_apart(names, tags) == ["net@quick", "net@paper", "other", "other", "net"]
