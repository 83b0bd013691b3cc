"""The walk of a row through the code, traced: `python -m holdfast_lab.walk`."""
