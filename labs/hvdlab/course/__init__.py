"""What only the notebooks need: experiments, figures, reports of ranks, loss landscapes, timelines."""
