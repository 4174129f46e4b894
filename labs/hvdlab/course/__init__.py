"""Modules for the notebooks: experiments, figures, reports of ranks, loss landscapes, timelines."""
