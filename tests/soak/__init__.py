"""Mixed work on a whole stack for as long as one likes: nothing may be wrong, lost, late, or grow.

`errands` says what is asked, `answers` what is wrong with an answer, `clients` asks, `gauges` watches the processes,
and `python -m tests.soak` runs it all and tells. The model is a tiny one whose weights are no quantized numbers: what
a neighbour does changes no word of anybody's text, so one known text, asked again and again, finds what went wrong in
the cache.
"""
