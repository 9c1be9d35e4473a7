"""`coderl view`: a local web page over the files of runs and pools, from a curve to a failing test."""
