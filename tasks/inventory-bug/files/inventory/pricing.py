"""The value of a stock line, by the rules of PRICING.md."""

from inventory.stock import StockLine

QUANTITY_DISCOUNTS = ((200, 20), (50, 12), (10, 5))  # pieces from, percent off
CLEARANCE_PERCENT = 15


def quantity_discount(pieces: int) -> int:
    """Percent off for so many pieces."""
    for pieces_from, percent in QUANTITY_DISCOUNTS:
        if pieces > pieces_from:
            return percent
    return 0


def piece_price(line: StockLine) -> int:
    """Price of one piece after all discounts, in whole cents."""
    percent = quantity_discount(line.quantity)
    if line.clearance:
        percent += CLEARANCE_PERCENT
    return round(line.unit_cents * (100 - percent) / 100)


def line_value(line: StockLine) -> int:
    """Value of the line's sound pieces, in cents."""
    return piece_price(line) * (line.quantity - line.damaged)
