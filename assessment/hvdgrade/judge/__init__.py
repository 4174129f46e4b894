"""Judge a run from its evidence. These modules start nothing and open no file of a submission."""
