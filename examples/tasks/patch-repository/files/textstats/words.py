"""Figures about the words of a text."""


def words(text):
    """The words of a text, in their order."""
    return text.split()


def longest_word(text):
    """The longest word; the first of several."""
    return max(words(text), key=len)
