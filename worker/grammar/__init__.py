"""What a client wants its text to be a sentence of, made into one grammar language and tried out where it can do no
harm. Knows neither the engine nor llama.cpp.
"""
