"""Lines of bulk files, in OpenAI's batch format: what each asks, in which order they run, and what is recorded of them.

In:  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
Out: {"id": "batch_req_...", "custom_id": "a",
      "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

Every line that is not blank has exactly one record. The record of a line that failed also has its `line` in the file.
A line that cannot be asked at all becomes a record whose `error` has `code`, `message` and `line`.
"""
