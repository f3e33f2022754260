"""Pictures that thg draws: sheets and spectrograms by Pillow, charts by matplotlib (the extra `plots`)."""

TORTOISE, HARE = "#0000CD", "#DC143C"
"""The two colours of the paper."""
