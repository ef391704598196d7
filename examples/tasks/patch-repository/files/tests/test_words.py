import unittest

from textstats.words import longest_word, words


class WordsTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(words("one two"), ["one", "two"])

    def test_longest_word(self):
        self.assertEqual(longest_word("a short sentence"), "sentence")
