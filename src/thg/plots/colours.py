"""The two colours of the paper, for all pictures that thg makes."""

TORTOISE, HARE = "#0000CD", "#DC143C"
