"""Modules for the notebooks: experiments, figures, reports of ranks, loss landscapes, timelines.

Each lab imports some of them in its first cell, which prepares its notebook (notebook.py).
"""

from hvdlab.course import notebook

notebook.prepare()
