"""What the API says of itself: a document in OpenAPI's format, and the same as a page. Knows no job and no Redis.

`description` is what stands beside each route's function, `answers` the forms of what it answers, `document` makes one
document of all routes, `page` makes HTML of that.
"""
