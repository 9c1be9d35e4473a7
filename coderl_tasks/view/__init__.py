"""`coderl view`: a local web page over the files of runs and pools, from a curve to the failing test of a completion."""
