"""ollama's API: what its clients may send, and what they are answered. The judge is the `ollama` client.

`fields` are the bodies, with `options` and `messages` in files of their own; `requests` makes jobs of them, `replies`
answers of what the jobs say, and `models` tells of models. Facts are those of ollama's api/types.go.
"""
