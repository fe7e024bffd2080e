"""What a message to a user must be."""


def one_line(message, *parts):
    message = str(message)
    assert message.strip()
    assert "\n" not in message.strip()
    for part in parts:
        assert str(part) in message
    return message
