"""A web page to watch and compare runs: `ddrl board`. Reads run directories, and writes nothing in them.

discovery   which directories are runs
series      the numbers of a run, thinned so that they fit a chart
records     the metrics of a run, read as they grow
settings    its settings, read without running anything that they name
run         one run: all of it, as the page is told
board       all of them, and the answers to what the page asks
texts       texts from disk, with escapes for characters that cannot be seen
page        the page in one file; with the answers in it, it needs no server
server      the page on 127.0.0.1, behind a token

Read `run` first, then `board`. Nothing here may import `cluster` or `ddrl.roles`, and `board` and `server` must load
without TensorFlow.
"""
