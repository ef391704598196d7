import unittest

from textstats.words import longest_word, words


class HiddenTest(unittest.TestCase):
    def test_words_as_before(self):
        self.assertEqual(words("one two"), ["one", "two"])

    def test_punctuation_is_no_part_of_a_word(self):
        self.assertEqual(longest_word("Well, hello there..."), "hello")

    def test_the_first_of_several(self):
        self.assertEqual(longest_word("four, five, nine"), "four")

    def test_no_words(self):
        self.assertEqual(longest_word(""), "")
        self.assertEqual(longest_word("... !"), "")
