"""Batches at work: files of requests become jobs, and their answers become files. `step` has the story."""
