#!lua
-- accept: whether a new job would be taken now.
-- Invariant: it changes nothing, and the server refuses it whenever it would refuse `enqueue`: when it is full, only
-- reads, or cannot save.
return 1
