"""`inv explain`: where a wheel, an image or a container came from, and what stands between it and a cache hit."""
