"""What the API says of itself: a document in OpenAPI's format, and the same as a page. Knows no job and no Redis.

`description` is what stands beside each route's function, `answers` the types of what it answers, `schemas` makes JSON
schemas of types, `document` one document of all routes, `page` HTML of that.
"""
