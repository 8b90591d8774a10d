"""The process that runs llama.cpp: it pulls jobs into slots and publishes what they say."""
