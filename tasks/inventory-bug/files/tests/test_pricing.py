"""Run from the top folder: python3 -m unittest tests/test_pricing.py"""

import unittest

from inventory.pricing import line_value
from inventory.stock import StockLine


def value(quantity: int, unit_cents: int, damaged: int = 0, clearance: bool = False) -> int:
    return line_value(StockLine("XX-0000", "tools", quantity, damaged, unit_cents, clearance))


class PricingTest(unittest.TestCase):
    def test_a_few_pieces_have_no_discount(self) -> None:
        self.assertEqual(value(3, 250), 750)

    def test_discount_in_the_middle_of_a_tier(self) -> None:
        self.assertEqual(value(20, 200), 20 * 190)

    def test_discount_at_the_start_of_a_tier(self) -> None:
        self.assertEqual(value(50, 200), 50 * 176)

    def test_clearance(self) -> None:
        self.assertEqual(value(2, 400, clearance=True), 2 * 340)

    def test_damaged_pieces_have_no_value(self) -> None:
        self.assertEqual(value(8, 100, damaged=3), 500)


if __name__ == "__main__":
    unittest.main()
