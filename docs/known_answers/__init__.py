"""Known answers as a release publishes them: ``python -m docs.known_answers FILE.zip`` makes one archive."""
