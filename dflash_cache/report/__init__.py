"""One HTML page about a run, from the files in its folder."""
